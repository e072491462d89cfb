"""Agents for the control suite and Gymnasium tasks: world model, planner, latent actions, PPO."""
