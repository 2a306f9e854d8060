"""A small convolutional network on pictures, with a loader in the main process."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3)
        self.second = nn.Conv2d(16, 32, 3)
        self.head = nn.Linear(32 * 5 * 5, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.first(x)), 2)
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        return self.head(x.flatten(1))


data = TensorDataset(torch.rand(1600, 1, 28, 28), torch.randint(0, 10, (1600,)))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
print("training")
for i, (images, labels) in enumerate(DataLoader(data, batch_size=64, shuffle=True)):
    optimizer.zero_grad()
    loss = functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    if i % 5 == 0:
        print(i, f"{loss.item():.4f}")
