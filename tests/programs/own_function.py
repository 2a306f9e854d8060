"""An autograd.Function of the program's own, a custom operator, hooks and second derivatives."""

import torch
from torch import nn
from torch.autograd.function import FunctionCtx


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return grad * gate * (1 + x * (1 - gate))


@torch.library.custom_op("programs::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),  # noqa: ARG005,
)
torch.manual_seed(0)
first, second = nn.Linear(12, 24), nn.Linear(24, 1)
seen = []
second.weight.register_hook(lambda grad: seen.append(grad.norm().item()))
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
for _ in range(50):
    inputs = torch.randn(16, 12, requires_grad=True)
    output = second(Swish.apply(scaled(first(inputs), 0.5)))
    (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
    loss = output.square().mean() + 0.1 * (slope.norm() - 1).square()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}, {len(seen)} hooks, {sum(seen):.3f}")
