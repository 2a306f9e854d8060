"""Scores a model on parts of the data in worker processes of joblib, then in its threads."""

import torch
from joblib import Parallel, delayed
from torch import nn


def score(seed: int) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    with torch.no_grad():
        return round(float(model(torch.ones(64, 32)).mean()), 4)


if __name__ == "__main__":
    in_processes = Parallel(n_jobs=2)(delayed(score)(seed) for seed in range(6))
    in_turn = [score(seed) for seed in range(6)]
    print(in_turn, "same" if in_turn == in_processes else "differs")
