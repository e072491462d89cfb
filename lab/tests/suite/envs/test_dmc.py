"""Control tasks against the simulators they wrap."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from dcem_lab.suite.envs.dmc import DMCEnv, GymnasiumEnv, _control_suite, make_env
from toy.checkpointed import actions_for, through_a_file
from toy.opaque import Opaque

suite = _control_suite()


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
    env = make_env(task)
    domain, _, name = task.partition("-")
    oracle = suite.load(
        domain, name, task_kwargs={"random": 3}, environment_kwargs={"flat_observation": True}
    )
    observation, _ = env.reset(seed=3)
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
    env = DMCEnv(task, action_repeat=repeat)
    env.reset(seed=0)
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
    first, second, other = (DMCEnv("walker-walk") for _ in range(3))
    episodes = [
        [env.reset(seed=seed)[0].tolist(), env.reset()[0].tolist()]
        for env, seed in ((first, 7), (second, 7), (other, 8))
    ]
    assert episodes[0] == episodes[1] != episodes[2]
    assert episodes[0][0] != episodes[0][1], "a reset without a seed goes on"
    assert first.reset(seed=7)[0].tolist() == episodes[0][0], "a reset with one starts over"


def test_actions_are_clipped() -> None:
    env, twin = DMCEnv("cheetah-run"), DMCEnv("cheetah-run")
    env.reset(seed=0)
    twin.reset(seed=0)
    assert same(env.step(np.full(6, 5.0)), twin.step(np.ones(6)))


def save_and_restore_often(task: str, n_saves: int, n_after: int) -> None:
    env, twin = make_env(task), make_env(task)
    env.reset(seed=0)
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
    env, twin = DMCEnv("walker-walk"), DMCEnv("walker-walk")
    env.reset(seed=0)
    for action in actions_for(env, 30):
        env.step(action)
    twin.set_state(env.get_state())
    with twin.physics.reset_context():
        twin.physics.set_state(env.physics.get_state())
    actions = actions_for(env, 100, seed=1)
    assert not all(same(env.step(action), twin.step(action)) for action in actions)


@pytest.mark.parametrize("task", ["reacher-hard", "finger-turn_hard", "point_mass-hard", "lqr-lqr_2_1"])
def test_what_a_task_changes_in_its_model_is_part_of_the_state(task: str) -> None:
    env, twin = make_env(task), make_env(task)
    env.reset(seed=0)
    twin.reset(seed=1)
    assert continues_exactly(env, twin, actions_for(env, 20))


@pytest.mark.slow
def test_every_task_of_the_suite_continues_bit_for_bit() -> None:
    for names in suite.ALL_TASKS:
        env, twin = (make_env("-".join(names)) for _ in range(2))
        env.reset(seed=0)
        assert continues_exactly(env, twin, actions_for(env, 30)), names


def test_frames_show_the_scene() -> None:
    env = DMCEnv("cheetah-run")
    env.reset(seed=0)
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


@pytest.mark.parametrize(
    ("task", "terminates"),
    [
        ("Pendulum-v1", False),
        ("HalfCheetah-v5", False),
        ("Hopper-v5", True),
        ("MountainCarContinuous-v0", True),
        ("cheetah-run", False),
        ("lqr-lqr_2_1", True),
    ],
)
def test_tasks_say_whether_they_may_terminate(task: str, terminates: bool) -> None:
    assert make_env(task).terminates == terminates


@pytest.mark.parametrize("task", ["Pendulum-v1", "MountainCarContinuous-v0", "Reacher-v5"])
def test_gymnasium_tasks_continue_bit_for_bit(task: str) -> None:
    env, twin = make_env(task), make_env(task)
    env.reset(seed=0)
    for action in actions_for(env, 30):
        env.step(action)
    assert continues_exactly(env, twin, actions_for(env, 60, seed=1))


def test_a_state_that_cannot_be_saved_exactly_is_refused() -> None:
    gymnasium.register("Opaque-v0", Opaque)
    env = GymnasiumEnv("Opaque-v0")
    assert env.observation_space.shape == (4,)
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match=r"get_state needs .* got 'Opaque-v0' \(Opaque\)"):
        env.get_state()
