"""Optuna tries learning rates and widths, each trial with a model and an optimizer of its own."""

import optuna
import torch
from torch import nn

optuna.logging.set_verbosity(optuna.logging.ERROR)
inputs = torch.linspace(-1, 1, 64).unsqueeze(1)


def objective(trial: optuna.Trial) -> float:
    torch.manual_seed(0)
    width = trial.suggest_int("width", 4, 32)
    rate = trial.suggest_float("rate", 1e-3, 1e-1, log=True)
    model = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(40):
        loss = nn.functional.mse_loss(model(inputs), (3 * inputs).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trial.report(loss.item(), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss.item()


study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=15)
print(f"best {study.best_value:.4f} of {len(study.trials)}")
