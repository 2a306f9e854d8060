"""An exponential average of the weights follows the model."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(30, 90), nn.ReLU(), nn.Linear(90, 3))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for step in range(50):
    x = torch.randn(50, 30)
    y = x[:, :3].argmax(1)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    if step % 10 == 9:
        with torch.no_grad():
            right = (average(x).argmax(1) == y).sum().item()
        print(step, f"{loss.item():.4f}", right)
