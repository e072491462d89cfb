"""Control tasks against the simulators they wrap; many at once against one at a time."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from dcem.envs.dmc import DMCEnv, GymnasiumEnv, _control_suite, make_env
from dcem.envs.vector import ParallelEnv

suite = _control_suite()


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


def same(one: tuple, two: tuple) -> bool:
    return np.array_equal(one[0], two[0]) and one[1:4] == two[1:4]


def continues_exactly(env: Any, twin: Any, actions: np.ndarray) -> bool:
    """Saves ``env``, restores it in ``twin``, and steps both, through a reset as well."""
    twin.set_state(through_a_file(env.get_state()))
    for action in actions:
        one, two = env.step(action), twin.step(action)
        if not same(one, two):
            return False
        if (one[2] or one[3]) and not np.array_equal(env.reset()[0], twin.reset()[0]):
            return False
    return True


# One environment of the suite


@pytest.mark.parametrize(
    ("task", "n_observations", "repeat"), [("cheetah-run", 17, 4), ("walker-walk", 24, 2)]
)
def test_equals_the_suite_step_for_step(task: str, n_observations: int, repeat: int) -> None:
    env = make_env(task, seed=3)
    domain, _, name = task.partition("-")
    oracle = suite.load(
        domain, name, task_kwargs={"random": 3}, environment_kwargs={"flat_observation": True}
    )
    observation, _ = env.reset()
    assert env.action_repeat == repeat
    assert env.observation_space.shape == observation.shape == (n_observations,)
    assert observation.dtype == np.float32
    expected = oracle.reset().observation["observations"]
    for action in actions_for(env, 40):
        assert np.array_equal(observation, expected.astype(np.float32))
        observation, reward, terminated, truncated, _ = env.step(action)
        steps = [oracle.step(action) for _ in range(repeat)]
        assert reward == pytest.approx(sum(step.reward for step in steps), rel=1e-15)
        assert not terminated
        assert not truncated
        expected = steps[-1].observation["observations"]


@pytest.mark.parametrize(
    ("task", "repeat"), [("cheetah-run", 4), ("cheetah-run", 3), ("pendulum-swingup", 50)]
)
def test_an_episode_is_a_thousand_environment_steps_and_then_truncated(task: str, repeat: int) -> None:
    env = DMCEnv(task, action_repeat=repeat, seed=0)
    env.reset()
    zero = np.zeros(env.action_space.shape)
    ends = [env.step(zero)[2:4] for _ in range(-(-1000 // repeat))]
    assert ends[-1] == (False, True)
    assert set(ends[:-1]) == {(False, False)}


def test_the_time_limit_is_the_suites_own() -> None:
    oracle = suite.load("cheetah", "run", task_kwargs={"random": 0})
    oracle.reset()
    zero = np.zeros(6)
    lasts = [oracle.step(zero).last() for _ in range(1000)]
    assert lasts.index(True) == 999


def test_seeds_decide_the_episodes() -> None:
    first, second, other = (DMCEnv("walker-walk", seed=seed) for seed in (7, 7, 8))
    episodes = [[env.reset()[0].tolist() for _ in range(2)] for env in (first, second, other)]
    assert episodes[0] == episodes[1] != episodes[2]
    assert episodes[0][0] != episodes[0][1], "a reset without a seed goes on"
    assert first.reset(seed=7)[0].tolist() == episodes[0][0], "a reset with one starts over"


def test_actions_are_clipped() -> None:
    env, twin = DMCEnv("cheetah-run", seed=0), DMCEnv("cheetah-run", seed=0)
    env.reset()
    twin.reset()
    assert same(env.step(np.full(6, 5.0)), twin.step(np.ones(6)))


def save_and_restore_often(task: str, n_saves: int, n_after: int) -> None:
    env, twin = make_env(task, seed=0), make_env(task, seed=1)
    env.reset()
    walk = actions_for(env, n_saves)
    for i, action in enumerate(walk):
        if any(env.step(action)[2:4]):
            env.reset()
        assert continues_exactly(env, twin, actions_for(env, n_after, seed=i))


@pytest.mark.parametrize("task", ["cheetah-run", "walker-walk"])
def test_saves_in_mid_episode_continue_bit_for_bit(task: str) -> None:
    save_and_restore_often(task, n_saves=25, n_after=20)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cheetah-run", "walker-walk"])
def test_a_thousand_saves_continue_bit_for_bit(task: str) -> None:
    save_and_restore_often(task, n_saves=1000, n_after=100)


def test_positions_and_velocities_alone_would_not_continue_exactly() -> None:
    # The check above can fail: this is the obvious restore, and its drift.
    env, twin = DMCEnv("walker-walk", seed=0), DMCEnv("walker-walk", seed=0)
    env.reset()
    for action in actions_for(env, 30):
        env.step(action)
    twin.set_state(env.get_state())
    with twin.physics.reset_context():
        twin.physics.set_state(env.physics.get_state())
    actions = actions_for(env, 100, seed=1)
    assert not all(same(env.step(action), twin.step(action)) for action in actions)


@pytest.mark.parametrize("task", ["reacher-hard", "finger-turn_hard", "point_mass-hard", "lqr-lqr_2_1"])
def test_what_a_task_changes_in_its_model_is_part_of_the_state(task: str) -> None:
    env, twin = make_env(task, seed=0), make_env(task, seed=1)
    env.reset()
    twin.reset()
    assert continues_exactly(env, twin, actions_for(env, 20))


@pytest.mark.slow
def test_every_task_of_the_suite_continues_bit_for_bit() -> None:
    for names in suite.ALL_TASKS:
        env, twin = (make_env("-".join(names), seed=seed) for seed in (0, 1))
        env.reset()
        assert continues_exactly(env, twin, actions_for(env, 30)), names


def test_frames_show_the_scene() -> None:
    env = DMCEnv("cheetah-run", seed=0)
    env.reset()
    try:
        frame = env.render()
    except Exception as error:
        pytest.skip(f"no OpenGL here: {error!r}")
    assert frame.shape == (240, 320, 3)
    assert frame.dtype == np.uint8
    assert frame.std() > 5


def test_bad_calls_are_named() -> None:
    with pytest.raises(ValueError, match=r"got 'cheeta-run'; the closest tasks are cheetah-run, "):
        make_env("cheeta-run")
    with pytest.raises(ValueError, match="action_repeat must be at least 1, got 0"):
        make_env("cheetah-run", action_repeat=0)
    with pytest.raises(ValueError, match=r"continuous \(Box\) actions, got 'CartPole-v1'"):
        make_env("CartPole-v1")
    state = make_env("cheetah-run").get_state()
    with pytest.raises(ValueError, match="state must be one of 'walker-walk', got one of 'cheetah-run'"):
        make_env("walker-walk").set_state(state)
    with pytest.raises(ValueError, match=r"state\['physics'\] must have shape"):
        make_env("cheetah-run").set_state(state | {"physics": np.zeros(3)})


# One environment of Gymnasium


def test_gymnasium_tasks_equal_the_originals_with_rescaled_actions() -> None:
    env, oracle = make_env("Pendulum-v1", action_repeat=2), gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=4)
    expected, _ = oracle.reset(seed=4)
    ends = []
    for action in actions_for(env, 100):
        assert np.array_equal(observation, expected)
        observation, reward, terminated, truncated, _ = env.step(action)
        steps = [oracle.step(2 * action) for _ in range(2)]
        expected = steps[-1][0]
        assert reward == pytest.approx(float(steps[0][1] + steps[1][1]), rel=1e-12)
        ends.append((terminated, truncated))
    assert env.observation_space.shape == (3,)
    assert env.action_space == Box(-1, 1, (1,), np.float32)
    assert ends == [(False, False)] * 99 + [(False, True)], "200 environment steps"


def test_termination_is_told_from_truncation() -> None:
    env = make_env("InvertedPendulum-v5")
    env.reset(seed=0)
    ends = [False, False]
    while not any(ends):
        ends = list(env.step(np.ones(1))[2:4])
    assert ends == [True, False]


@pytest.mark.parametrize("task", ["Pendulum-v1", "MountainCarContinuous-v0", "Reacher-v5"])
def test_gymnasium_tasks_continue_bit_for_bit(task: str) -> None:
    env, twin = make_env(task, seed=0), make_env(task, seed=1)
    env.reset()
    for action in actions_for(env, 30):
        env.step(action)
    assert continues_exactly(env, twin, actions_for(env, 60, seed=1))


class Opaque(gymnasium.Env):
    """An environment that keeps its state to itself and misbehaves on demand.

    The first number of an action says what happens: above 0.5 it fails in the way of its kind.
    """

    observation_space = Box(-np.inf, np.inf, (2, 2))
    action_space = Box(-1, 1, (1,))

    def __init__(self, kind: str = "nan reward") -> None:
        self.kind = kind

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros((2, 2), np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward = np.zeros((2, 2), np.float32), 1.0
        if action[0] > 0.5:
            if self.kind == "exit":
                os._exit(3)
            if self.kind == "raise":
                raise OverflowError("the simulation blew up")
            if self.kind == "nan reward":
                reward = np.nan
            else:
                observation[1, 0] = np.inf
        return observation, reward, False, False, {}


def test_a_state_that_cannot_be_saved_exactly_is_refused() -> None:
    gymnasium.register("Opaque-v0", Opaque)
    env = GymnasiumEnv("Opaque-v0")
    assert env.observation_space.shape == (4,)
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match=r"get_state needs .* got 'Opaque-v0' \(Opaque\)"):
        env.get_state()


# Many environments


@pytest.fixture
def opened() -> Iterator[Callable[..., ParallelEnv]]:
    """A ParallelEnv constructor whose results are closed at the end."""
    vectors: list[ParallelEnv] = []

    def open_(*args: Any, **kwargs: Any) -> ParallelEnv:
        vectors.append(ParallelEnv(*args, **kwargs))
        return vectors[-1]

    yield open_
    for vector in vectors:
        vector.close()


def stepped(vector: ParallelEnv, actions: np.ndarray) -> list[tuple]:
    """Steps, with resets where episodes end; everything that came back."""
    history = []
    for action in actions:
        *step, _ = vector.step(action)
        ended = step[2] | step[3]
        if ended.any():
            step.append(vector.reset(options={"reset_mask": ended})[0])
        history.append(tuple(step))
    return history


def assert_same_history(one: list[tuple], two: list[tuple]) -> None:
    assert len(one) == len(two)
    for left, right in zip(one, two, strict=True):
        assert len(left) == len(right)
        assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_workers_do_not_change_the_numbers(opened: Callable[..., ParallelEnv]) -> None:
    factory = partial(make_env, "cheetah-run", action_repeat=250)
    local, remote = opened(factory, 3), opened(factory, 3, n_workers=2)
    singles = [factory() for _ in range(3)]
    starts = [vector.reset(seed=5)[0] for vector in (local, remote)]
    expected = np.stack([env.reset(seed=5 + i)[0] for i, env in enumerate(singles)])
    assert np.array_equal(starts[0], starts[1])
    assert np.array_equal(starts[0], expected)
    actions = actions_for(local, 6)
    histories = [stepped(vector, actions) for vector in (local, remote)]
    assert_same_history(*histories)
    last = histories[0][3]
    assert last[3].all(), "the fourth step ends the episode"
    final = [[env.step(actions[t, i]) for t in range(4)][-1] for i, env in enumerate(singles)]
    assert np.array_equal(last[0], np.stack([step[0] for step in final])), "with its last observation"
    assert not np.array_equal(last[0], last[4]), "and the reset gives another"


def test_a_saved_vector_continues_anywhere(opened: Callable[..., ParallelEnv]) -> None:
    factory = partial(make_env, "Pendulum-v1", action_repeat=20)
    remote, local = opened(factory, 5, n_workers=2), opened(factory, 5)
    remote.reset(seed=0)
    mask = np.array([True, False, False, True, False])
    for _ in range(3):
        remote.step(actions_for(remote, 1)[0])
    remote.reset(options={"reset_mask": mask})
    state = through_a_file(remote.get_state())
    local.set_state(state)
    assert np.array_equal(local.observations, remote.observations)
    actions = actions_for(remote, 25, seed=1)
    assert_same_history(stepped(local, actions), stepped(remote, actions))
    remote.set_state(state)
    local.set_state(state)
    assert_same_history(stepped(local, actions), stepped(remote, actions))


def test_ended_episodes_must_be_reset(opened: Callable[..., ParallelEnv]) -> None:
    vector = opened(partial(make_env, "Pendulum-v1", action_repeat=200), 3)
    with pytest.raises(RuntimeError, match=r"reset environments \[0, 1, 2\] first"):
        vector.step(np.zeros((3, 1)))
    vector.reset(seed=0)
    observations = vector.step(np.zeros((3, 1)))[0]
    again, _ = vector.reset(options={"reset_mask": np.array([True, False, True])})
    assert np.array_equal(again[1], observations[1])
    assert not np.array_equal(again[0], observations[0])
    with pytest.raises(RuntimeError, match=r"reset environments \[1\] first"):
        vector.step(np.zeros((3, 1)))


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nan reward", "environment 2 gave a reward of nan at step 3 of its episode"),
        ("inf observation", "environment 2 gave a non-finite observation at step 3 of its episode"),
        ("raise", r"environment 2 failed in step at step 3 .*OverflowError\('the simulation blew up'\)"),
    ],
)
def test_a_failing_environment_is_named(
    opened: Callable[..., ParallelEnv], n_workers: int, kind: str, message: str
) -> None:
    vector = opened(partial(Opaque, kind), 4, n_workers)
    vector.reset()
    actions = np.zeros((4, 1))
    for _ in range(2):
        vector.step(actions)
    actions[2] = 1
    with pytest.raises(RuntimeError, match=message):
        vector.step(actions)
    with pytest.raises(RuntimeError, match="environment 0 failed in get_state"):
        vector.get_state()
    assert vector.reset()[0].shape == (4, 2, 2), "and the vector still works"
    vector.step(np.zeros((4, 1)))


def test_a_dead_worker_is_an_error_not_a_hang(opened: Callable[..., ParallelEnv]) -> None:
    vector = opened(partial(Opaque, "exit"), 3, n_workers=2)
    vector.reset()
    for _ in range(2):
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match=r"environments 2 to 2 died \(exit code 3\)"):
            vector.step(np.array([[0], [0], [1]]))
        assert time.monotonic() - begin < 5


def fails_in_a_worker(parent: int) -> gymnasium.Env:
    if os.getpid() != parent:
        raise FileNotFoundError("no such robot")
    return Opaque()


def test_a_factory_that_fails_in_a_worker_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no such robot"):
        ParallelEnv(partial(fails_in_a_worker, os.getpid()), 2, n_workers=2)


class Settings(Opaque):
    """Observes the variables of the process it is in."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        disabled = os.environ.get("MUJOCO_GL") == "disabled"
        return np.array([[os.environ["OMP_NUM_THREADS"], disabled]] * 2, np.float32), {}


def test_workers_neither_render_nor_start_threads_and_leave_our_variables_alone(
    opened: Callable[..., ParallelEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    vector = opened(Settings, 1, n_workers=1)
    assert vector.reset()[0][0, 0].tolist() == [1, before.get("MUJOCO_GL", "disabled") == "disabled"]
    assert dict(os.environ) == before


def test_bad_calls_of_a_vector_are_named(opened: Callable[..., ParallelEnv]) -> None:
    with pytest.raises(ValueError, match="n_envs must be at least 1, got 0"):
        ParallelEnv(Opaque, 0)
    with pytest.raises(ValueError, match="n_workers must be between 0 and n_envs=2, got 3"):
        ParallelEnv(Opaque, 2, n_workers=3)
    with pytest.raises(ValueError, match=r"an action space that is a Box, got Discrete\(2\)"):
        ParallelEnv(partial(gymnasium.make, "CartPole-v1"), 2)
    vector = opened(Opaque, 2)
    with pytest.raises(ValueError, match=r"options\['reset_mask'\] must be \(2,\) of bool, got \(3,\)"):
        vector.reset(options={"reset_mask": np.ones(3, bool)})
    with pytest.raises(ValueError, match="seed must have one entry for each of 2, got 1"):
        vector.reset(seed=[4])
    vector.reset()
    with pytest.raises(ValueError, match=r"actions must have shape \(2, 1\), got \(2,\)"):
        vector.step(np.zeros(2))
    with pytest.raises(ValueError, match=r"actions must be finite, got \[nan\] for environment 1"):
        vector.step(np.array([[0.0], [np.nan]]))
    with pytest.raises(ValueError, match="state must hold 2 environments, got 0"):
        vector.set_state({"envs": {}})
    vector.close()
    with pytest.raises(RuntimeError, match="closed"):
        vector.step(np.zeros((2, 1)))


def test_a_vector_without_owner_ends_its_workers() -> None:
    vector = ParallelEnv(Opaque, 2, n_workers=2)
    pids = [worker._process.pid for worker in vector._workers]
    assert all(is_running(pid) for pid in pids)
    del vector
    assert not any(is_running(pid) for pid in pids)


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    # Neither a script that forgets close() nor one that is killed leaves a worker behind, and the first
    # one ends by itself although its workers ignore the signals of its process group.
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, sys
            from functools import partial
            from dcem.envs.dmc import make_env
            from dcem.envs.vector import ParallelEnv

            if __name__ == "__main__":
                vector = ParallelEnv(partial(make_env, "Pendulum-v1"), 2, n_workers=2)
                vector.reset(seed=0)
                pids = [worker._process.pid for worker in vector._workers]
                for pid in pids:
                    os.kill(pid, signal.SIGTERM)
                    os.kill(pid, signal.SIGINT)
                vector.step([[0.0], [0.0]])
                print(*pids, flush=True)
                if sys.argv[1] == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    commands = [[sys.executable, str(script), how] for how in ("forgets", "killed")]
    pipe = subprocess.PIPE
    runs = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for command in commands]
    for run, code in zip(runs, (0, -signal.SIGKILL), strict=True):
        output, errors = run.communicate(timeout=60)
        assert run.returncode == code, errors
        pids = [int(pid) for pid in output.split()]
        assert len(pids) == 2
        deadline = time.monotonic() + 5
        while any(is_running(pid) for pid in pids):
            assert time.monotonic() < deadline, "a worker outlives its parent"
            time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        # A zombie has ended; only its parent's wait is missing.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
