"""Runs a hand-written beam search. Each step extends and reorders the cache of keys and values."""

import torch
import torch.nn.functional as F
from torch import nn

EOS, VOCABULARY, BEAMS, LONGEST, HEADS, WIDTH = 1, 8000, 4, 128, 8, 512


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x, past):
        n, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.mlp(self.norm2(x)), (k, v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.layers = nn.ModuleList(Layer() for _ in range(6))

    def forward(self, tokens, cache=None):
        x, new = self.embed(tokens), []
        for at, layer in enumerate(self.layers):
            x, kept = layer(x, cache[at] if cache else None)
            new.append(kept)
        return self.head(x[:, -1]), new


class Hypotheses:
    def __init__(self):
        self.found = []

    def add(self, tokens, score):
        self.found.append((score / len(tokens) ** 0.6, tokens))

    def is_done(self, best):
        return len(self.found) >= BEAMS and min(s for s, _ in self.found) >= best / LONGEST**0.6


@torch.inference_mode()
def search(model, prompts):
    batch = prompts.shape[0]
    tokens = prompts.repeat_interleave(BEAMS, 0)
    scores = torch.zeros(batch, BEAMS, device="cuda")
    scores[:, 1:] = -1e9
    scores = scores.view(-1)
    hypotheses, done, cache = [Hypotheses() for _ in range(batch)], [False] * batch, None
    while tokens.shape[1] < LONGEST:
        logits, cache = model(tokens if cache is None else tokens[:, -1:], cache)
        total = (F.log_softmax(logits.float(), -1) + scores[:, None]).view(batch, -1)
        best, places = total.topk(2 * BEAMS, 1)
        rows = []
        for b in range(batch):
            kept = []
            for score, place in zip(best[b].tolist(), places[b].tolist()):
                beam, token = divmod(place, VOCABULARY)
                if token == EOS:
                    hypotheses[b].add(tokens[b * BEAMS + beam].clone(), score)
                else:
                    kept.append((score, token, b * BEAMS + beam))
                if len(kept) == BEAMS:
                    break
            done[b] = done[b] or hypotheses[b].is_done(best[b].max().item())
            rows += kept
        if all(done):
            break
        scores = torch.tensor([row[0] for row in rows], device="cuda")
        order = torch.tensor([row[2] for row in rows], device="cuda")
        tokens = torch.cat(
            [tokens[order], torch.tensor([[row[1]] for row in rows], device="cuda")], 1
        )
        cache = [(k.index_select(0, order), v.index_select(0, order)) for k, v in cache]
    return tokens.shape


torch.manual_seed(0)
model = Model().cuda().eval()
print(tuple(search(model, torch.randint(2, VOCABULARY, (16, 8), device="cuda"))))
