"""Many environments at once against one at a time, and workers that fail or are left behind."""

from __future__ import annotations

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

from dcem_lab.suite.envs.dmc import make_env
from dcem_lab.suite.envs.vector import ParallelEnv
from toy.checkpointed import actions_for, through_a_file
from toy.opaque import Opaque, Settings, fails_in_a_worker


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
        with pytest.raises(RuntimeError, match=r"environments 2 to 2 died \(exit code 3\)"):
            vector.step(np.array([[0], [0], [1]]))


def test_a_factory_that_fails_in_a_worker_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no such robot"):
        ParallelEnv(partial(fails_in_a_worker, os.getpid()), 2, n_workers=2)


def test_workers_neither_render_nor_start_threads_and_leave_our_variables_alone(
    opened: Callable[..., ParallelEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for name in ("MKL_NUM_THREADS", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    vector = opened(Settings, 1, n_workers=1)
    assert vector.reset()[0][0, 0].tolist() == [1, True]
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


@pytest.mark.process
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    # Neither a script that forgets close() nor one that is killed leaves a worker behind, and the first
    # one ends by itself although its workers ignore the signals of its process group.
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, sys
            from functools import partial
            from dcem_lab.suite.envs.dmc import make_env
            from dcem_lab.suite.envs.vector import ParallelEnv

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
        deadline = time.monotonic() + 60  # against a hang
        while any(is_running(pid) for pid in pids):
            assert time.monotonic() < deadline, "a worker outlives its parent"
            time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        # A zombie has ended; only its parent's wait is missing.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
