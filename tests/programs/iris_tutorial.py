"""The iris classifier as tutorials write it: whole data set per epoch, losses kept every 200."""

import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 8), nn.Linear(8, 9), nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.second(torch.relu(self.first(x)))))


torch.manual_seed(41)
measures, kinds = load_iris(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(measures, kinds, test_size=0.2, random_state=41)
x_train, x_test = torch.FloatTensor(x_train), torch.FloatTensor(x_test)
y_train, y_test = torch.LongTensor(y_train), torch.LongTensor(y_test)
model = Model()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for epoch in range(8000):
    loss = criterion(model(x_train), y_train)
    if epoch % 200 == 0:
        losses.append(loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    right = (model(x_test).argmax(1) == y_test).sum().item()
print(f"kept {len(losses)} losses, right {right} of {len(y_test)}")
