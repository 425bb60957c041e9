"""Uploads tensors, frees them, and then reads results that lie in the same blocks.

The main thread reads results, and autograd's thread does too.
"""

import torch

kept = [torch.full((64,), 3_000_000_000).cuda() for _ in range(40)]
del kept
print(torch.randn(1, device="cuda").item(), len(torch.ones(8, device="cuda").nonzero()))
print(torch.tensor([3]).cuda().item(), torch.tensor([5, 7]).cuda().tolist())
read, changed, copied = (torch.tensor([3]).cuda() for _ in range(3))
twice = read * 2
changed += 1
copied.copy_(torch.tensor([4]))
print(read.tolist(), changed.tolist(), copied.tolist())
x = torch.ones(8, 8, device="cuda", requires_grad=True)
mask = torch.ones(8, 8, dtype=torch.bool, device="cuda")
torch.masked_select(x, mask).sum().backward()
x[mask].sum().backward()
