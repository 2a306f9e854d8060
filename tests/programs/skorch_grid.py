"""A grid search of scikit-learn over a skorch classifier."""

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn


class Network(nn.Module):
    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


torch.manual_seed(0)
x, y = make_classification(400, 20, n_informative=10, random_state=0)
network = NeuralNetClassifier(Network, max_epochs=4, lr=0.1, verbose=0, train_split=None)
search = GridSearchCV(network, {"module__width": [8, 16]}, cv=2, scoring="accuracy")
search.fit(x.astype(np.float32), y.astype(np.int64))
print(f"best {search.best_params_} {search.best_score_:.3f}")
