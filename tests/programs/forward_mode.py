"""Jacobians, Hessians and per-sample gradients by torch.func, and forward-mode derivatives."""

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
weights = dict(model.named_parameters())
inputs, targets = torch.randn(32, 8), torch.randn(32, 1)


def loss_of(weights: dict[str, torch.Tensor], row: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(functional_call(model, weights, (row,)), to)


for _ in range(20):
    per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))(weights, inputs, targets)
    curvature = vmap(hessian(lambda row: model(row).sum()))(inputs)
    slopes = vmap(jacrev(model))(inputs)
    _, forward = jvp(model, (inputs,), (torch.ones_like(inputs),))
    with forward_ad.dual_level():
        dual = model(forward_ad.make_dual(inputs, torch.ones_like(inputs)))
        tangent = forward_ad.unpack_dual(dual).tangent
print(f"gradients {per_sample['0.weight'].norm():.4f}, curvature {curvature.norm():.4f}")
print("forward is backward:", torch.allclose(forward, slopes.sum(-1), atol=1e-5))
print("dual is jvp:", torch.allclose(forward, tangent, atol=1e-6))
ensemble = [nn.Linear(8, 2) for _ in range(5)]
stacked, buffers = stack_module_state(ensemble)
outputs = vmap(lambda w, b: functional_call(ensemble[0], (w, b), (inputs,)))(stacked, buffers)
print("ensemble", tuple(outputs.shape))
