"""Two schedules of the learning rate."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, nesterov=True, momentum=0.9)
warm_up = LinearLR(optimizer, 0.1, total_iters=10)
schedule = SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, 50)], milestones=[10])
print("training")
for step in range(60):
    x = torch.randn(100, 10)
    loss = (model(x).squeeze() - x.sum(1)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 15 == 0:
        print(step, f"{schedule.get_last_lr()[0]:.4f} {loss.item():.4f}")
