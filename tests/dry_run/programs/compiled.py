"""Trains transformer layers under torch.compile, with an empty compiler cache.

The compiler takes memory while it tunes kernels. With a filled cache, it would not tune them again.
"""

import os
import tempfile

folder = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name

import torch
from figures import tell
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, activation="gelu")
model = torch.compile(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(16, 512, 1024, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
tell()
