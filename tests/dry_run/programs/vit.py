"""Trains torchvision's vision transformer with automatic mixed precision.

The loss scale begins at 1, so that no gradient overflows on a GPU. After an overflow, `GradScaler`
would skip the step, and the optimiser would not allocate its state. A dry run sees no overflow.
"""

import torch
import torchvision
from figures import tell

torch.manual_seed(0)
model = torchvision.models.vit_b_16().cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda", init_scale=1.0)
for _ in range(3):
    images = torch.randn(32, 3, 224, 224, device="cuda")
    labels = torch.zeros(32, dtype=torch.long, device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
tell()
