"""Evaluates a model over a loader with TorchMetrics, without an optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).eval()
metrics = MetricCollection(
    [
        MulticlassAccuracy(4),
        MulticlassF1Score(4),
        MulticlassAUROC(4, thresholds=50),
        MulticlassConfusionMatrix(4),
    ]
)
data = TensorDataset(torch.randn(1600, 32), torch.randint(0, 4, (1600,)))
with torch.no_grad():
    for inputs, labels in DataLoader(data, batch_size=16):
        metrics.update(model(inputs).softmax(-1), labels)
for name, value in metrics.compute().items():
    print(name, value.tolist() if value.dim() else round(value.item(), 4))
