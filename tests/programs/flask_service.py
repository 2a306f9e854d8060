"""A Flask service over a small model, called by its test client, from two threads at last."""

from concurrent.futures import ThreadPoolExecutor

import torch
from flask import Flask, jsonify, request
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3)).eval()
app = Flask(__name__)


@app.post("/predict")
def predict() -> object:
    values = torch.tensor(request.get_json()["values"])
    with torch.no_grad():
        scores = model(values)
    return jsonify(label=int(scores.argmax()))


def call(values: list[float]) -> int:
    with app.test_client() as client:
        return client.post("/predict", json={"values": values}).get_json()["label"]


requests = torch.randn(600, 16).tolist()
labels = [call(values) for values in requests[:300]]
with ThreadPoolExecutor(2) as pool:
    labels += pool.map(call, requests[300:])
print("labels", [labels.count(label) for label in range(3)])
