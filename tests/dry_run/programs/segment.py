"""Trains torchvision's DeepLabV3 with ResNet-50 on crops of 320 by 320 pixels. Uses AMP."""

import torch
import torch.nn.functional as F
import torchvision

torch.manual_seed(0)
model = torchvision.models.segmentation.deeplabv3_resnet50(
    weights=None, weights_backbone=None, num_classes=21, aux_loss=True
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    images = torch.rand(8, 3, 320, 320, device="cuda")
    labels = torch.randint(0, 21, (8, 320, 320), device="cuda")
    with torch.autocast("cuda", torch.float16):
        outputs = model(images)
        loss = F.cross_entropy(outputs["out"], labels) + 0.5 * F.cross_entropy(
            outputs["aux"], labels
        )
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
