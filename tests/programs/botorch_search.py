"""Bayesian optimization of a function of two variables with BoTorch, eight points."""

import warnings

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

warnings.filterwarnings("ignore")
torch.manual_seed(0)


def objective(points: torch.Tensor) -> torch.Tensor:
    return -((points - 0.3) ** 2).sum(-1, keepdim=True)


bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
points = torch.rand(6, 2, dtype=torch.float64)
values = objective(points)
for _ in range(8):
    model = SingleTaskGP(points, values)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    candidate, _ = optimize_acqf(
        LogExpectedImprovement(model, best_f=values.max()),
        bounds=bounds,
        q=1,
        num_restarts=3,
        raw_samples=16,
    )
    points = torch.cat([points, candidate])
    values = torch.cat([values, objective(candidate)])
print(f"best is above -0.01: {bool(values.max() > -0.01)}, {len(points)} points")
