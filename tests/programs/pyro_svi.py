"""Stochastic variational inference with Pyro: its optimizer makes one torch optimizer a weight."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam

pyro.set_rng_seed(0)
inputs = torch.randn(100)
outputs = 2.0 * inputs + 1.0 + 0.1 * torch.randn(100)


def model(x: torch.Tensor, y: torch.Tensor) -> None:
    slope = pyro.sample("slope", dist.Normal(0.0, 5.0))
    bias = pyro.sample("bias", dist.Normal(0.0, 5.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(slope * x + bias, 0.1), obs=y)


svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), Trace_ELBO())
for step in range(200):
    loss = svi.step(inputs, outputs)
    if step % 50 == 49:
        print(f"step {step + 1}: {loss:.1f}")
