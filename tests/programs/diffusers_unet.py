"""Trains a small UNet of diffusers to predict noise, then samples from it."""

import torch
from diffusers import DDPMScheduler, UNet2DModel

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=16,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(16, 32),
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
scheduler = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(16):
    images, noise = torch.rand(4, 1, 16, 16), torch.randn(4, 1, 16, 16)
    times = torch.randint(0, 50, (4,))
    loss = torch.nn.functional.mse_loss(
        model(scheduler.add_noise(images, noise, times), times).sample, noise
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 8 == 7:
        print(f"step {step + 1}: {loss.item():.3f}")
sample = torch.randn(1, 1, 16, 16)
scheduler.set_timesteps(10)
with torch.no_grad():
    for time in scheduler.timesteps:
        sample = scheduler.step(model(sample, time).sample, time, sample).prev_sample
print("sampled", tuple(sample.shape))
