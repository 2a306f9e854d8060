"""Fits a fastai learner on a table."""

import numpy as np
import pandas as pd
import torch
from fastai.tabular.all import (
    Categorify,
    Normalize,
    TabularDataLoaders,
    accuracy,
    set_seed,
    tabular_learner,
)

set_seed(0, reproducible=True)
rng = np.random.default_rng(0)
table = pd.DataFrame({"age": rng.normal(size=800), "pay": rng.normal(size=800)})
table["town"] = rng.choice(["a", "b", "c"], size=800)
table["class"] = np.where(table["age"] + table["pay"] > 0, "high", "low")
loaders = TabularDataLoaders.from_df(
    table,
    procs=[Categorify, Normalize],
    cat_names=["town"],
    cont_names=["age", "pay"],
    y_names="class",
    valid_idx=list(range(600, 800)),
    bs=32,
    num_workers=0,
)
learner = tabular_learner(loaders, layers=[32, 16], metrics=accuracy)
with learner.no_bar(), learner.no_logging():
    learner.fit_one_cycle(3, 1e-2)
loss, right = learner.validate()
print(f"accuracy above 0.8: {right > 0.8}, {torch.get_num_threads()} thread")
