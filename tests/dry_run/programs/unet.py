"""Trains diffusers' UNet for one step in bf16 with gradient checkpoints, then denoises in fp16."""

import torch
from diffusers import UNet2DConditionModel
from figures import tell

torch.manual_seed(0)
shape = {"block_out_channels": (128, 256, 512, 512), "cross_attention_dim": 768, "sample_size": 64}
model = UNet2DConditionModel(**shape).to("cuda", torch.bfloat16)
model.enable_gradient_checkpointing()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    latents = torch.randn(4, 4, 64, 64, device="cuda", dtype=torch.bfloat16)
    words = torch.randn(4, 77, 768, device="cuda", dtype=torch.bfloat16)
    times = torch.tensor([1, 50, 500, 999], device="cuda")
    model(latents, times, words).sample.float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
model.half().eval()
with torch.no_grad():
    latents = torch.randn(2, 4, 64, 64, device="cuda", dtype=torch.float16)
    words = torch.randn(2, 77, 768, device="cuda", dtype=torch.float16)
    for time in range(3):
        latents = latents - 0.1 * model(latents, time, words).sample
tell()
