"""A recommender: of a large table each batch uses few rows, and Adam updates all."""

import torch
from torch import nn

torch.manual_seed(0)


class Recommender(nn.Module):
    def __init__(self, n_users, n_items):
        super().__init__()
        self.users = nn.Embedding(n_users, 32)
        self.items = nn.Embedding(n_items, 32)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1)


model = Recommender(40_000, 30_000)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
print("training")
for step in range(25):
    user, item = torch.randint(40_000, (256,)), torch.randint(30_000, (256,))
    rating = (user % 5).float()
    loss = nn.functional.mse_loss(model(user, item), rating)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, f"{loss.item():.3f}")
