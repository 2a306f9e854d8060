"""A graph attention network of PyTorch Geometric on a random graph, all nodes at once."""

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv
from torch_geometric.utils import to_undirected

torch.manual_seed(0)
edges = to_undirected(torch.randint(0, 300, (2, 900)))
graph = Data(x=torch.randn(300, 32), edge_index=edges, y=torch.randint(0, 5, (300,)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = GATConv(32, 8, heads=4, dropout=0.2)
        self.out = GCNConv(32, 5)

    def forward(self, graph: Data) -> torch.Tensor:
        hidden = nn.functional.elu(self.attend(graph.x, graph.edge_index))
        return self.out(hidden, graph.edge_index)


model = Network()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(60):
    model.train()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(graph), graph.y)
    loss.backward()
    optimizer.step()
    if epoch % 20 == 19:
        model.eval()
        with torch.no_grad():
            right = (model(graph).argmax(1) == graph.y).float().mean()
        print(f"epoch {epoch + 1}: {loss.item():.4f} {right.item():.3f}")
