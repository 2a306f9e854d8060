"""A FastAPI service with a synchronous and an asynchronous route, called by its test client."""

import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3)).eval()
app = FastAPI()


class Request(BaseModel):
    values: list[float]


def predict(values: list[float]) -> int:
    with torch.inference_mode():
        return int(model(torch.tensor([values])).argmax())


@app.post("/sync")
def answer(request: Request) -> dict[str, int]:
    return {"class": predict(request.values)}


@app.post("/async")
async def answer_async(request: Request) -> dict[str, int]:
    return {"class": predict(request.values)}


counts = {"/sync": [0, 0, 0], "/async": [0, 0, 0]}
with TestClient(app) as client:
    for number in range(300):
        route = ("/sync", "/async")[number % 2]
        reply = client.post(route, json={"values": torch.randn(16).tolist()})
        counts[route][reply.json()["class"]] += 1
print(counts)
