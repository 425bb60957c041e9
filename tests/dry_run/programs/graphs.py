"""Captures a training step in a CUDA graph, as PyTorch's documentation shows, and replays the
graph."""

import torch
from figures import tell
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()
optimizer = torch.optim.Adam(model.parameters(), capturable=True)
batch = torch.randn(1024, 2048, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    model(batch).pow(2).mean().backward()
    optimizer.step()


stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(5):
    batch.copy_(torch.randn(1024, 2048, device="cuda"))
    graph.replay()
tell()
