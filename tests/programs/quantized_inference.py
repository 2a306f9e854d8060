"""Inference with a dynamically quantized model, fed by a loader, without an optimizer."""

import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).eval()
quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
data = TensorDataset(torch.randn(2000, 64))
agreed = 0
with torch.inference_mode():
    for (inputs,) in DataLoader(data, batch_size=20):
        agreed += int((model(inputs).argmax(1) == quantized(inputs).argmax(1)).sum())
print(f"agreed on more than 95 %: {agreed > 1900}")
