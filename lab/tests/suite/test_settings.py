"""The settings of the three phases: short names stay unambiguous, ranges hold wherever a default changes."""

import importlib

import pytest

from dcem_lab.runs.settings import known_settings
from dcem_lab.suite import embed

LOOP = ["n_envs", "n_workers", "eval_every", "eval_episodes", "save_every", "seed", "device", "source"]
STEPS = ["env_steps", "log_every"]
LEARNING = ["updates_per_step", "batch", "length", "lr", "eps", "clip", "average"]
COLLECTING = ["seed_episodes", "seed_steps", "noise", "noise_from_zero", "replay_steps", "checkpoint_mb"]
SHORT = {
    "planet": [*LOOP, *STEPS, *LEARNING, *COLLECTING, "task", "action_repeat", "wrap_angles", "members"],
    "agent": [
        *LOOP, *STEPS, *LEARNING, *COLLECTING, "task", "action_repeat", "wrap_angles", "members", "critics",
        "gamma", "reward_scale", "values", "bound", "early_share", "early_chunks", "smoothing", "targets",
        "imagined_steps", "lam",
    ],
    "embed": [*LOOP, *STEPS, *LEARNING, *COLLECTING, "keep_model", "offline", "pessimism", "latent_dim",
              "states", "context", "start_share", "recent", "backward", "kept", "residual", "keep_value"],
    "ppo": [
        *LOOP, "snapshot", "steps", "actions", "parts", "passes", "minibatch", "lr", "std", "learn_std",
        "std_lr", "gamma", "lam", "clip", "grad_clip", "value_width", "value_lr", "value_updates",
        "value_steps", "backward", "kept", "filter_again", "likelihood", "batch", "length", "replay_steps",
        "samples", "tau",
    ],
}  # fmt: skip


@pytest.mark.parametrize("experiment", list(SHORT))
def test_a_short_name_means_one_setting(experiment: str) -> None:
    fields = known_settings(importlib.import_module(f"dcem_lab.suite.{experiment}").Config)
    for name in SHORT[experiment]:
        meant = [name] if name in fields else [key for key in fields if key.endswith(f".{name}")]
        assert len(meant) == 1, (name, meant)


@pytest.mark.parametrize("name", ["updates_per_step", "clip", "average"])
def test_another_default_has_the_same_range(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be "):
        embed.Config(**{name: -1.0})
