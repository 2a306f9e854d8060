"""Collects rollouts with TorchRL and fits a value network to them."""

import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
from tensordict.nn import TensorDictModule  # noqa: E402
from torch import nn  # noqa: E402
from torchrl.envs import GymEnv  # noqa: E402
from torchrl.modules import ValueOperator  # noqa: E402

torch.manual_seed(0)
environment = GymEnv("CartPole-v1", device="cpu")
environment.set_seed(0)
policy = TensorDictModule(
    nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2), nn.Softmax(-1)),
    in_keys=["observation"],
    out_keys=["action"],
)
value = ValueOperator(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)))
optimizer = torch.optim.Adam(value.parameters(), lr=1e-2)
frames = 0
for _ in range(25):
    rollout = environment.rollout(30)
    frames += len(rollout)
    rewards = rollout["next", "reward"].flip(0).cumsum(0).flip(0)
    loss = nn.functional.mse_loss(value(rollout)["state_value"], rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"frames {frames}, loss {loss.item():.3f}, keys {len(policy.in_keys)}")
