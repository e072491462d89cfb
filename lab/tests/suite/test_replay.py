"""The replay buffer, against a plain Python record of what was written."""

from __future__ import annotations

import itertools

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcem_lab.suite.replay import Chunk, ReplayBuffer

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Recorder:
    """Writes labelled steps to a buffer and keeps them in lists: an observation is (env, episode, t)."""

    def __init__(self, replay: ReplayBuffer) -> None:
        self.replay = replay
        self.streams: list[list[tuple[int, int, int]]] = [[] for _ in range(replay.n_envs)]
        self.now = [(env, 0, 0) for env in range(replay.n_envs)]
        self.terminal: set[tuple[int, int, int]] = set()

    def step(self, ended: list[bool], terminated: list[bool] | None = None) -> None:
        reached = [(env, episode, t + 1) for env, episode, t in self.now]
        labels = torch.tensor(self.now, dtype=torch.float32)
        self.replay.add(
            labels,
            -labels[:, :2] - 100.0 * labels[:, 2:],
            1000.0 * labels[:, 2] + labels[:, 0],
            torch.tensor(reached, dtype=torch.float32),
            torch.tensor(ended),
            None if terminated is None else torch.tensor(terminated),
        )
        self.terminal |= {label for label, over in zip(reached, terminated or [], strict=False) if over}
        for env, over in enumerate(ended):
            self.streams[env].append(self.now[env])
            self.now[env] = reached[env]
            if over:
                self.streams[env].append(reached[env])
                self.now[env] = (env, reached[env][1] + 1, 0)

    def starts(self, length: int, from_start: bool = False) -> set[tuple[int, int, int]]:
        """Every observation that is still there, with the ``length`` that follow it in its episode."""
        found = set()
        for stream in self.streams:
            alive = stream[-self.replay.capacity :]
            for (env, episode, t), later in zip(alive, alive[length:], strict=False):
                if later == (env, episode, t + length) and not (from_start and t):
                    found.add((env, episode, t))
        return found

    def lengths(self, length: int, newest: int | None = None) -> dict[tuple[int, int, int], int]:
        """Every padded chunk by its start: ``length``, or the steps until a termination that comes before."""
        found = dict.fromkeys(self.starts(length), length)
        for stream in self.streams:
            alive = stream[-self.replay.capacity :]
            for (env, episode, t), later in itertools.product(alive, range(1, length + 1)):
                if (env, episode, t + later) in self.terminal:
                    found[env, episode, t] = later
        if newest is not None:
            newer = {label for stream in self.streams for label in stream[-newest:]}
            found = {(e, i, t): n for (e, i, t), n in found.items() if (e, i, t + n) in newer}
        return found

    def loaded(self, replay: ReplayBuffer, state: dict[str, torch.Tensor]) -> Recorder:
        """What goes on with a state of this one's buffer."""
        replay.load_state_dict(state)
        twin = Recorder(replay)
        kept = state["rewards"].shape[1]
        twin.streams, twin.now = [stream[-kept:] for stream in self.streams], list(self.now)
        return twin

    def check(self, length: int) -> None:
        """What the buffer gives is what the lists hold."""
        for from_start in (False, True):
            expected = self.starts(length, from_start)
            assert int(self.replay.n_starts(length, from_start)) == len(expected)
            if expected:
                generator = torch.Generator().manual_seed(0)
                drawn = check_chunk(self.replay.sample(2000, length, generator, from_start), length)
                assert set(drawn) == expected


def check_chunk(chunk: Chunk, length: int) -> list[tuple[int, int, int]]:
    """Labels, actions and rewards belong together and follow each other; returns where chunks start."""
    first = chunk.observations[:, :1]
    steps = torch.arange(length + 1, dtype=torch.float32)
    torch.testing.assert_close(chunk.observations[..., :2], first[..., :2].expand(-1, length + 1, -1))
    torch.testing.assert_close(chunk.observations[..., 2], first[..., 2] + steps)
    taken = chunk.observations[:, :-1]
    torch.testing.assert_close(chunk.actions, -taken[..., :2] - 100.0 * taken[..., 2:])
    torch.testing.assert_close(chunk.rewards, 1000.0 * taken[..., 2] + taken[..., 0])
    return [tuple(int(x) for x in row) for row in chunk.observations[:, 0].tolist()]


def check_padded(recorder: Recorder, length: int, newest: int | None = None) -> None:
    """Padded chunks are those of the lists, terminated where these say so, and nothing after that."""
    expected = recorder.lengths(length, newest)
    assert int(recorder.replay.n_starts(length, newest=newest, padded=True)) == len(expected)
    if not expected:
        return
    chunk = recorder.replay.sample(4000, length, torch.Generator().manual_seed(0), newest=newest, padded=True)
    starts = [tuple(int(x) for x in row) for row in chunk.observations[:, 0].tolist()]
    assert set(starts) == set(expected)
    for row, (env, episode, t) in enumerate(starts[:500]):
        steps = expected[env, episode, t]
        assert chunk.valid[row].tolist() == [i < steps for i in range(length)]
        labels = [[env, episode, t + min(i, steps)] for i in range(length + 1)]
        assert chunk.observations[row].tolist() == labels
        ends = [(env, episode, t + i + 1) in recorder.terminal and i < steps for i in range(length)]
        assert chunk.terminated[row].tolist() == ends
    after = ~chunk.valid
    assert (chunk.actions[after] == 0).all()
    assert (chunk.rewards[after] == 0).all()
    taken = chunk.observations[:, :-1][chunk.valid]
    torch.testing.assert_close(chunk.rewards[chunk.valid], 1000.0 * taken[..., 2] + taken[..., 0])
    torch.testing.assert_close(chunk.actions[chunk.valid], -taken[..., :2] - 100.0 * taken[..., 2:])


def recorded(
    n_envs: int = 2, capacity: int = 40, n_steps: int = 100, lengths: tuple[int, ...] = (7, 5)
) -> Recorder:
    """Environment i ends its episodes after ``lengths[i]`` steps."""
    recorder = Recorder(ReplayBuffer(n_envs, capacity, 3, 2, shortest_episode=2))
    for t in range(n_steps):
        recorder.step([t % lengths[env] == lengths[env] - 1 for env in range(n_envs)])
    return recorder


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_chunks_are_exactly_the_runs_of_steps_within_one_episode(data: st.DataObject) -> None:
    n_envs = data.draw(st.integers(1, 3))
    recorder = Recorder(ReplayBuffer(n_envs, data.draw(st.integers(2, 25)), 3, 2, shortest_episode=1))
    rate = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    random = data.draw(st.randoms(use_true_random=False))
    for _ in range(data.draw(st.integers(1, 60))):
        recorder.step([random.random() < rate for _ in range(n_envs)])
    length = data.draw(st.integers(1, 6))
    expected = recorder.starts(length)
    assert int(recorder.replay.n_starts(length)) == len(expected)
    if not expected:
        with pytest.raises(ValueError, match="length must be below"):
            recorder.replay.sample(4, length)
        return
    generator = torch.Generator().manual_seed(0)
    # Missing one of at most 75 starts in 4,000 uniform draws has a probability below 1e-20.
    chunk = recorder.replay.sample(4000, length, generator)
    assert set(check_chunk(chunk, length)) == expected


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_padded_chunks_are_cut_short_by_terminations_and_by_nothing_else(data: st.DataObject) -> None:
    n_envs = data.draw(st.integers(1, 3))
    recorder = Recorder(ReplayBuffer(n_envs, data.draw(st.integers(2, 25)), 3, 2, shortest_episode=1))
    random = data.draw(st.randoms(use_true_random=False))
    for _ in range(data.draw(st.integers(1, 60))):
        ended = [random.random() < 0.3 for _ in range(n_envs)]
        recorder.step(ended, [over and random.random() < 0.7 for over in ended])
    length, newest = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([None, 1, 4]))
    check_padded(recorder, length, newest)
    state = recorder.replay.state_dict()
    twin = recorder.loaded(ReplayBuffer(n_envs, 25, 3, 2, shortest_episode=1), state)
    twin.terminal = recorder.terminal
    check_padded(twin, length, newest)
    without = {name: x for name, x in state.items() if name != "terminated"}
    recorder.replay.load_state_dict(without)
    recorder.terminal.clear()
    check_padded(recorder, length, newest)


def test_an_unfinished_episode_is_closed_without_a_termination() -> None:
    recorder = Recorder(ReplayBuffer(1, 20, 3, 2, shortest_episode=1))
    for t in range(5):
        recorder.step([t == 2], [t == 2])
    recorder.replay.close_episodes()
    assert recorder.replay.sample(50, 1).terminated.any()
    recorder.replay.close_episodes()  # of which nothing has begun
    check_padded(recorder, 3)


def test_every_start_is_equally_likely() -> None:
    recorder = recorded(n_steps=103, lengths=(13, 4))
    expected = sorted(recorder.starts(3))
    chunk = recorder.replay.sample(20_000, 3, torch.Generator().manual_seed(1))
    drawn = check_chunk(chunk, 3)
    counts = [drawn.count(start) for start in expected]
    assert sum(counts) == 20_000
    assert len({start[:2] for start in expected}) > 5, "several episodes, so that their lengths matter"
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("newest", [1, 4, 9, 1000])
def test_the_newest_are_those_that_end_last(newest: int) -> None:
    recorder = recorded(n_steps=100, lengths=(13, 6))  # the open episodes have 9 and 4 steps
    length, newer = 3, set()
    for stream in recorder.streams:
        newer |= set(stream[-newest:])
    expected = {
        (env, episode, t)
        for env, episode, t in recorder.starts(length)
        if (env, episode, t + length) in newer
    }
    assert int(recorder.replay.n_starts(length, newest=newest)) == len(expected)
    chunk = recorder.replay.sample(2000, length, torch.Generator().manual_seed(0), newest=newest)
    assert set(check_chunk(chunk, length)) == expected


def test_the_oldest_steps_are_overwritten() -> None:
    recorder = recorded(n_envs=1, capacity=20, n_steps=12, lengths=(6,))
    assert (0, 0, 0) in recorder.starts(2)
    for _ in range(9):
        recorder.step([False])
    drawn = set(check_chunk(recorder.replay.sample(1000, 2, torch.Generator().manual_seed(0)), 2))
    assert drawn == recorder.starts(2)
    assert min(drawn) == (0, 0, 3), "three of the first episode's seven observations are gone"
    assert max(drawn) == (0, 2, 6)


def test_an_open_episode_longer_than_the_buffer_keeps_its_newest_part() -> None:
    recorder = recorded(n_envs=1, capacity=10, n_steps=95, lengths=(1000,))
    drawn = set(check_chunk(recorder.replay.sample(500, 4, torch.Generator().manual_seed(0)), 4))
    assert drawn == {(0, 0, t) for t in range(85, 91)}


def test_too_many_short_episodes_forget_the_oldest_and_stay_within_bounds() -> None:
    replay = ReplayBuffer(1, 60, 3, 2, shortest_episode=30)
    recorder = Recorder(replay)
    for t in range(40):
        recorder.step([t % 2 == 1])
    drawn = set(check_chunk(replay.sample(500, 1, torch.Generator().manual_seed(0)), 1))
    assert drawn == {(0, episode, t) for episode in (17, 18, 19) for t in (0, 1)}
    assert int(replay.n_starts(1)) == 6


@pytest.mark.parametrize("n_steps", [9, 33, 200], ids=["started", "nearly full", "overwritten"])
def test_state_round_trip_gives_the_same_chunks_and_the_same_future(n_steps: int) -> None:
    recorder = recorded(n_steps=n_steps)
    state = recorder.replay.state_dict()
    other = ReplayBuffer(2, 40, 3, 2, shortest_episode=2)
    other.load_state_dict(state)
    twin = Recorder(other)
    twin.streams, twin.now = [list(stream) for stream in recorder.streams], list(recorder.now)
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    for t in range(60):
        pair = [r.replay.sample(8, 3, g) for r, g in zip((recorder, twin), generators, strict=True)]
        for one, two in zip(*pair, strict=True):
            assert torch.equal(one, two)
        for r in (recorder, twin):
            r.step([t % 7 == 2, t % 5 == 3])


def test_a_state_holds_no_memory_of_the_buffer_and_none_that_is_unused() -> None:
    recorder = recorded(n_steps=9)
    state = recorder.replay.state_dict()
    before = {name: x.clone() for name, x in state.items()}
    recorder.step([False, True])
    assert all(torch.equal(x, before[name]) for name, x in state.items())
    assert state["observations"].shape[1] == 10, "nine steps and a final observation, not the capacity"


@pytest.mark.parametrize("n_steps", [30, 33, 200])
@pytest.mark.parametrize("max_bytes", [1300, 1500, 1900, 10_000])
def test_a_cut_keeps_the_newest(n_steps: int, max_bytes: int) -> None:
    recorder = recorded(n_steps=n_steps)
    cut = recorder.replay.cut(max_bytes)
    size, kept = sum(x.nbytes for x in cut.values()), cut["rewards"].shape[1]
    assert size == recorder.replay.state_bytes(kept) <= max_bytes
    assert (kept < min(n_steps, 40)) == (max_bytes < 10_000)
    twin = recorder.loaded(ReplayBuffer(2, 40, 3, 2, shortest_episode=2), cut)
    for t in range(30):
        twin.check(2)
        twin.step([t % 7 == 2, t % 5 == 3])


@pytest.mark.parametrize("n_steps", [90, 93], ids=["open", "just finished"])
def test_a_cut_keeps_the_newest_part_of_an_episode(n_steps: int) -> None:
    recorder = Recorder(ReplayBuffer(1, 200, 3, 2, shortest_episode=2))
    for t in range(n_steps):
        recorder.step([t == 90])
    twin = recorder.loaded(
        ReplayBuffer(1, 200, 3, 2, shortest_episode=2), recorder.replay.cut(recorder.replay.state_bytes(67))
    )
    assert int(twin.replay.n_starts(10)) > 50
    for t in range(40):
        twin.check(10)
        if twin.replay.n_starts(10, from_start=True):
            assert (twin.replay.sample(20, 10, from_start=True).observations[:, 0, 2] == 0).all()
        twin.step([t == 20])


def test_a_cut_that_cannot_hold_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes must be at least"):
        recorded().replay.cut(100)


def test_a_state_loads_into_a_buffer_of_another_capacity() -> None:
    recorder = recorded(n_steps=200)
    larger, smaller = (ReplayBuffer(2, capacity, 3, 2, shortest_episode=3) for capacity in (90, 13))
    larger.load_state_dict(recorder.replay.state_dict())
    smaller.load_state_dict(recorder.replay.state_dict())
    for replay in (larger, smaller):
        twin = Recorder(replay)
        twin.streams = [stream[-min(40, replay.capacity) :] for stream in recorder.streams]
        drawn = set(check_chunk(replay.sample(3000, 3, torch.Generator().manual_seed(0)), 3))
        assert drawn == twin.starts(3)


@pytest.mark.parametrize("n_steps", [8, 95, 96, 97, 98, 99])
def test_the_rest_of_an_episode_has_no_start_in_a_larger_buffer(n_steps: int) -> None:
    recorder = recorded(capacity=30, n_steps=n_steps, lengths=(40, 5))
    larger = recorder.loaded(ReplayBuffer(2, 60, 3, 2, shortest_episode=2), recorder.replay.state_dict())
    for t in range(25):
        larger.check(3)
        larger.step([t % 40 == 30, t % 5 == 3])
    # Nor after it was saved from there, with places that were never written to.
    again = ReplayBuffer(2, 70, 3, 2, shortest_episode=2)
    again.load_state_dict(larger.replay.state_dict())
    twin = Recorder(again)
    twin.streams = larger.streams
    twin.check(3)


def test_nothing_reads_a_value_back() -> None:
    # Tensors of the meta device have no values: whatever needs one raises.
    replay = ReplayBuffer(3, 20, 4, 2, device="meta")
    with torch.device("meta"):
        step = [
            torch.zeros(3, 4),
            torch.zeros(3, 2),
            torch.zeros(3),
            torch.zeros(3, 4),
            torch.zeros(3).bool(),
        ]
    replay.add(*step)
    chunk = replay.sample(5, 6)
    assert chunk.observations.shape == (5, 7, 4)
    assert replay.n_starts(6).shape == ()


def test_bad_calls_are_named() -> None:
    for name in ("n_envs", "capacity", "shortest_episode"):
        arguments = {"n_envs": 1, "capacity": 10, "shortest_episode": 2, name: 0}
        with pytest.raises(ValueError, match=f"{name} must be at least"):
            ReplayBuffer(observation_size=3, action_size=2, **arguments)
    replay = recorded().replay
    good = [torch.zeros(2, 3), torch.zeros(2, 2), torch.zeros(2), torch.zeros(2, 3), torch.zeros(2).bool()]
    good.append(torch.zeros(2).bool())
    names = ["observations", "actions", "rewards", "next_observations", "ended", "terminated"]
    for i, name in enumerate(names):
        with pytest.raises(ValueError, match=rf"^{name} must have shape \(2.*got \(3"):
            replay.add(*[torch.zeros(3, 1) if j == i else x for j, x in enumerate(good)])
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        replay.sample(4, 0)
    with pytest.raises(ValueError, match="newest must be at least 1, got 0"):
        replay.sample(4, 2, newest=0)
    state = replay.state_dict()
    with pytest.raises(ValueError, match=r"state\['actions'\] must be torch.float32"):
        replay.load_state_dict(state | {"actions": torch.zeros(2, 40, 5)})
    with pytest.raises(ValueError, match=r"state\['written'\] must be torch.int64"):
        replay.load_state_dict(state | {"written": torch.zeros(2)})
    with pytest.raises(ValueError, match="state must have the entries"):
        replay.load_state_dict({"rewards": state["rewards"]})


@needs_cuda
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_add_and_sample_are_captured_in_a_cuda_graph() -> None:
    replay = ReplayBuffer(2, 40, 3, 2, device="cuda", shortest_episode=2)
    recorder = Recorder(replay)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for t in range(30):
            recorder.step([t % 7 == 6, t % 5 == 4])
        replay.sample(50, 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chunk = replay.sample(4000, 3)
    for t in range(40):
        recorder.step([t % 7 == 6, t % 5 == 4])
        graph.replay()
        torch.cuda.synchronize()
        assert set(check_chunk(Chunk(*(x.cpu() for x in chunk)), 3)) == recorder.starts(3)


@needs_cuda
@pytest.mark.gpu
def test_with_nothing_to_sample_a_device_gives_nan() -> None:
    replay = ReplayBuffer(2, 40, 3, 2, device="cuda")
    assert all(x.isnan().all() for x in replay.sample(4, 3)[:3])
