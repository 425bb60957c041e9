"""Trains a detector of torchvision on two images of 640 by 480 pixels, or runs it: NAME [eval]."""

import sys

import torch
import torchvision

name, *mode = sys.argv[1:]
torch.manual_seed(0)
device = "cuda"
model = getattr(torchvision.models.detection, name)(
    weights=None, weights_backbone=None, num_classes=10
).to(device)
images = lambda: [torch.rand(3, 480, 640, device=device) for _ in range(2)]
if mode == ["eval"]:
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            model(images())
else:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    boxes = torch.tensor([[10.0, 20.0, 100.0, 200.0], [50.0, 60.0, 300.0, 310.0]], device=device)
    for _ in range(3):
        pictures = images()
        targets = [
            {
                "boxes": boxes.clone(),
                "labels": torch.tensor([1, 2], device=device),
                "masks": torch.ones((2, 480, 640), dtype=torch.uint8, device=device),
            }
            if "mask" in name
            else {"boxes": boxes.clone(), "labels": torch.tensor([1, 2], device=device)}
            for _ in pictures
        ]
        loss = sum(model(pictures, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
