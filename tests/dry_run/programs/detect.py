"""Trains the torchvision detector NAME on two images of 640 by 480 pixels: detect.py NAME [eval].

With `eval`, only runs the detector.
"""

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
        targets = []
        for _ in pictures:
            target = {"boxes": boxes.clone(), "labels": torch.tensor([1, 2], device=device)}
            if "mask" in name:
                target["masks"] = torch.ones((2, 480, 640), dtype=torch.uint8, device=device)
            if "keypoint" in name:
                target["keypoints"] = torch.full((2, 17, 3), 100.0, device=device)
            targets.append(target)
        loss = sum(model(pictures, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
