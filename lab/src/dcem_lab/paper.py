"""The numbers of the paper.

They were decoded from its vector graphics, except where a comment says that they were read by eye.
"""

from __future__ import annotations

from typing import NamedTuple

TITLE = "The Differentiable Cross-Entropy Method"
AUTHORS = "Brandon Amos and Denis Yarats, ICML 2020"
ADDRESS = "https://arxiv.org/abs/1909.12830"

# Regression: the training error that both methods reach at so many updates, by eye.
REGRESSION_MSE = {"dcem": 3e-4, "gd": 3e-4}
REGRESSION_UPDATES = 60_000

# Cartpole: the mean validation cost of the expert, and best validation costs over it, (latent dimension, τ).
CARTPOLE_EXPERT = -9.046
CARTPOLE_FACTORS = {
    (2, 1.0): 1.083, (2, 0.1): 1.047, (2, 0.0): 1.088,
    (8, 1.0): 1.187, (8, 0.1): 0.796, (8, 0.0): 0.890,
    (16, 1.0): 1.094, (16, 0.1): 0.817, (16, 0.0): 0.656,
}  # fmt: skip
CARTPOLE_PCA = 1.0675


class Quartiles(NamedTuple):
    """Of the returns of 100 episodes."""

    q1: float
    median: float
    q3: float

    def __str__(self) -> str:
        return f"{self.median:.0f} [{self.q1:.0f}–{self.q3:.0f}]"


DMC_RETURNS = {
    ("cheetah-run", "full-cem"): Quartiles(683, 701, 714),
    ("cheetah-run", "latent-dcem"): Quartiles(592, 652, 681),
    ("cheetah-run", "latent-dcem-ppo"): Quartiles(597, 685, 716),
    ("walker-walk", "full-cem"): Quartiles(920, 953, 972),
    ("walker-walk", "latent-dcem"): Quartiles(761, 861, 916),
    ("walker-walk", "latent-dcem-ppo"): Quartiles(843, 892, 928),
}
