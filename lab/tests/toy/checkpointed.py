"""Actions that lead an environment anywhere, and its state as a checkpoint gives it back."""

from __future__ import annotations

import io
import json
from typing import Any

import gymnasium
import numpy as np


def actions_for(env: gymnasium.Env, n: int, seed: int = 0) -> np.ndarray:
    shape = (n, *env.action_space.shape)
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def through_a_file(value: Any) -> Any:
    """Arrays through NumPy's format without pickles, all else through JSON: what a checkpoint does."""
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        return {key: through_a_file(x) for key, x in value.items()}
    if isinstance(value, np.ndarray):
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        file.seek(0)
        return np.load(file, allow_pickle=False)
    assert value is None or type(value) in (bool, int, float, str), f"{type(value)} is not JSON"
    return json.loads(json.dumps(value))
