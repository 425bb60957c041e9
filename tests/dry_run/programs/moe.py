"""Trains a mixture of experts with a loop over the experts, as in Mixtral."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, EXPERTS, TOP = 768, 8, 2


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x):
        flat = x.view(-1, WIDTH)
        logits = self.gate(flat)
        weights, chosen = F.softmax(logits, dim=1, dtype=torch.float).topk(TOP, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(flat)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for number in hit:
            slot, token = torch.where(mask[number].squeeze(0))
            part = flat[None, token].reshape(-1, WIDTH)
            part = self.experts[number](part) * weights[token, slot, None]
            out.index_add_(0, token, part.to(out.dtype))
        share = F.one_hot(chosen, EXPERTS).float().mean((0, 1))
        return out.view_as(x), (share * logits.softmax(-1).mean(0)).sum()


torch.manual_seed(0)
layers = nn.ModuleList(Sparse() for _ in range(3)).cuda()
optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4)
for step in range(3):
    x = torch.randn(8, 512, WIDTH, device="cuda")
    balance = 0
    with torch.autocast("cuda", torch.bfloat16):
        for layer in layers:
            y, one = layer(x)
            x, balance = x + y, balance + one
        loss = x.square().mean() + 0.01 * balance
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f} balance {balance.item():.3f}")
