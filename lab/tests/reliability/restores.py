"""Environments saved in mid-episode, through a file, and continued by another one: bit for bit."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from dcem_lab.runs import Checkpoints
from dcem_lab.suite.envs.dmc import ControlEnv, make_env
from reliability.outcome import Outcome

TASKS = ("cheetah-run", "walker-walk", "Pendulum-v1", "HalfCheetah-v5", "cartpole-swingup", "reacher-easy")
STEPS = 25


def measure(count: int, folder: Path) -> Outcome:
    chance = random.Random(0)
    failures, slowest = [], 0.0
    pairs = {task: (make_env(task), make_env(task)) for task in TASKS[:count]}
    store = Checkpoints(folder / "states")
    for trial in range(count):
        task = TASKS[trial % len(TASKS)]
        env, other = pairs[task]
        actions = np.random.default_rng(trial).uniform(-1, 1, (2 * STEPS, *env.action_space.shape))
        env.reset(seed=trial)
        for action in actions[: chance.randrange(STEPS)]:
            env.step(action)
        began = time.monotonic()
        store.save(trial, env.get_state())
        saved = store.load()
        assert saved is not None
        other.set_state(saved.tree)
        slowest = max(slowest, time.monotonic() - began)
        if continuation(env, actions[STEPS:]) != continuation(other, actions[STEPS:]):
            failures.append(f"{task}, try {trial}: another continuation")
    for both in pairs.values():
        for env in both:
            env.close()
    return Outcome(count, failures, slowest, f"{STEPS} steps and a new episode each: {', '.join(pairs)}")


def continuation(env: ControlEnv, actions: np.ndarray) -> list[Any]:
    """Everything that is seen from here on, and at the start of the next episode."""
    seen = []
    for action in actions:
        observation, reward, *ended, _ = env.step(action)
        seen.append((observation.tobytes(), reward, ended))
    return [*seen, env.reset()[0].tobytes()]
