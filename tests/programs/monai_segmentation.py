"""Trains a three-dimensional UNet of MONAI with its transforms, loss and sliding inference."""

import warnings

import torch

warnings.filterwarnings("ignore")
from monai.data import DataLoader, Dataset  # noqa: E402
from monai.inferers import sliding_window_inference  # noqa: E402
from monai.losses import DiceCELoss  # noqa: E402
from monai.networks.nets import UNet  # noqa: E402
from monai.transforms import Compose, RandFlipd, ScaleIntensityd  # noqa: E402
from monai.utils import set_determinism  # noqa: E402

set_determinism(0)
volumes = [torch.rand(1, 16, 16, 16) for _ in range(16)]
items = [{"image": volume, "label": (volume > 0.6).float()} for volume in volumes]
keys = ["image", "label"]
prepared = Compose([ScaleIntensityd(keys="image"), RandFlipd(keys=keys, prob=0.5)])
model = UNet(3, 1, 2, channels=(4, 8), strides=(2,), num_res_units=1)
criterion = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(3):
    total = 0.0
    for batch in DataLoader(Dataset(items, prepared), batch_size=2, shuffle=True):
        loss = criterion(model(batch["image"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: {total:.3f}")
model.eval()
with torch.no_grad():
    whole = sliding_window_inference(torch.rand(1, 1, 24, 24, 24), (16, 16, 16), 4, model)
print("whole", tuple(whole.shape))
