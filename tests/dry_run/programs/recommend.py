"""Trains a recommender with EmbeddingBag, sparse gradients and two towers, then ranks the items."""

import torch
import torch.nn.functional as F
from torch import nn

USERS, ITEMS, WIDTH = 200_000, 500_000, 64


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.history = nn.EmbeddingBag(ITEMS, WIDTH, mode="mean", sparse=True)
        self.items = nn.Embedding(ITEMS, WIDTH, sparse=True)
        self.left = nn.Sequential(nn.Linear(2 * WIDTH, 512), nn.ReLU(), nn.Linear(512, 128))
        self.right = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 128))

    def user(self, users, bags, offsets):
        return F.normalize(
            self.left(torch.cat([self.users(users), self.history(bags, offsets)], 1)), dim=1
        )

    def item(self, items):
        return F.normalize(self.right(self.items(items)), dim=1)


torch.manual_seed(0)
model = Towers().cuda()
names = ("users", "history", "items")
tables = [p for n, p in model.named_parameters() if n.split(".")[0] in names]
dense = [p for n, p in model.named_parameters() if n.split(".")[0] not in names]
optimizers = [torch.optim.SparseAdam(tables, 1e-3), torch.optim.Adam(dense, 1e-3)]
for _ in range(4):
    users, items = torch.randint(0, USERS, (4096,)), torch.randint(0, ITEMS, (4096,))
    counts = torch.randint(1, 40, (4096,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)[:-1]])
    bags = torch.randint(0, ITEMS, (int(counts.sum()),))
    users, items, bags, offsets = (one.cuda() for one in (users, items, bags, offsets))
    logits = model.user(users, bags, offsets) @ model.item(items).T / 0.05
    logits = logits.masked_fill(
        (items[:, None] == items[None]) & ~torch.eye(4096, dtype=torch.bool, device="cuda"), -1e4
    )
    loss = F.cross_entropy(logits, torch.arange(4096, device="cuda"))
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
with torch.no_grad():
    every = torch.cat(
        [model.item(part) for part in torch.arange(ITEMS, device="cuda").split(65536)]
    )
    query = model.user(users[:512], bags[: int(offsets[512])], offsets[:512])
    best = (query @ every.T).topk(100, 1)[1]
    popular = torch.unique(best)
print(
    f"loss {loss.item():.3f} items {len(popular)}, hits {(best == items[:512, None]).any(1).sum().item()}"
)
