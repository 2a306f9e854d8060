"""Fits an exact Gaussian process with GPyTorch."""

import gpytorch
import torch

torch.manual_seed(0)


class Process(gpytorch.models.ExactGP):
    def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: object) -> None:
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: torch.Tensor) -> object:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


x = torch.linspace(0, 1, 100)
y = (x * 6.283).sin() + 0.1 * torch.randn(100)
likelihood = gpytorch.likelihoods.GaussianLikelihood()
process = Process(x, y, likelihood)
objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)
optimizer = torch.optim.Adam(process.parameters(), lr=0.1)
for _ in range(40):
    optimizer.zero_grad()
    loss = -objective(process(x), y)
    loss.backward()
    optimizer.step()
process.eval()
likelihood.eval()
with torch.no_grad(), gpytorch.settings.fast_pred_var():
    predicted = likelihood(process(torch.linspace(0, 1, 20)))
print(f"loss {loss.item():.3f}, noise {likelihood.noise.item():.3f}")
print(f"variance {predicted.variance.mean().item():.3f}")
