"""Uses torch.func to clip each example's gradients, run an ensemble, and compute Jacobians."""

import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 10)
).cuda()
state = {name: one.detach() for name, one in model.named_parameters()}


def loss(state, x, y):
    return nn.functional.cross_entropy(functional_call(model, state, (x[None],)), y[None])


each = vmap(grad(loss), in_dims=(None, 0, 0))
for _ in range(3):
    x, y = torch.randn(256, 256, device="cuda"), torch.randint(0, 10, (256,), device="cuda")
    grads = each(state, x, y)
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in grads.values()]).norm(dim=0)
    factor = (1.0 / (norms + 1e-6)).clamp(max=1)
    with torch.no_grad():
        for name, one in grads.items():
            mean = torch.einsum("b,b...->...", factor, one) / len(x)
            state[name] -= 0.1 * (mean + 0.01 * torch.randn_like(mean))
    cut = (norms > 1).sum().item()
models = [
    nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).cuda() for _ in range(16)
]
parameters, buffers = stack_module_state(models)
single = models[0]
votes = vmap(lambda p, b, x: functional_call(single, (p, b), (x,)), in_dims=(0, 0, None))(
    parameters, buffers, x
)
jacobian = vmap(jacrev(lambda x: functional_call(model, state, (x,))))(x[:64])
print(
    cut,
    tuple(votes.shape),
    tuple(jacobian.shape),
    f"{torch.linalg.svdvals(jacobian)[:, 0].max().item():.3f}",
)
