"""Weight norm, spectral norm and pruning, then the parametrizations are removed."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

torch.manual_seed(0)
model = nn.Sequential(
    parametrizations.weight_norm(nn.Linear(16, 32)),
    nn.ReLU(),
    parametrizations.spectral_norm(nn.Linear(32, 32)),
    nn.ReLU(),
    nn.Linear(32, 4),
)
prune.l1_unstructured(model[4], "weight", amount=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(60):
    inputs, labels = torch.randn(32, 16), torch.randint(0, 4, (32,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
prune.remove(model[4], "weight")
for layer in (model[0], model[2]):
    parametrize.remove_parametrizations(layer, "weight")
print(f"loss {loss.item():.4f}, zeros {(model[4].weight == 0).sum().item()} of 128")
print("hooks", [len(layer._forward_pre_hooks) for layer in model])
