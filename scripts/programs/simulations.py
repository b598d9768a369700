"""stable-baselines3's PPO with simulations in processes of their own."""

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

if __name__ == "__main__":
    torch.set_num_threads(1)
    simulations = make_vec_env("CartPole-v1", 2, seed=0, vec_env_cls=SubprocVecEnv)
    model = PPO("MlpPolicy", simulations, n_steps=64, n_epochs=2, seed=0, device="cpu")
    for _ in range(3):
        model.learn(128, reset_num_timesteps=False)
        print(f"loss {model.logger.name_to_value['train/loss']:.6f}", flush=True)
    simulations.close()
