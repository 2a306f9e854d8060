"""Proximal policy optimization of Stable-Baselines3 on CartPole."""

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, n_epochs=4, seed=0, device="cpu", verbose=0)
model.learn(1536)
mean, _ = evaluate_policy(model, gymnasium.make("CartPole-v1"), n_eval_episodes=3, warn=False)
print(f"steps {model.num_timesteps}, reward above 20: {mean > 20}")
