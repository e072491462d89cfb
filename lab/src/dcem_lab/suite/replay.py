"""A replay buffer that returns chunks of consecutive steps, never across an episode's end.

Each environment writes into a ring of its own. Positions are counted from the start of training and
taken modulo the capacity only to address memory, so overwriting the oldest steps needs no bookkeeping:
anything older than ``written - capacity`` is gone. A table stores where each episode begins and ends, even
if its beginning is gone.
Everything is on one device and no value is read back, so ``add`` and ``sample`` can be captured in a CUDA
graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_STEPS = ("observations", "actions", "rewards")  # rings, by position
_COUNTS = ("written", "oldest", "episode")
_EPISODES = ("first", "end", "terminated")  # rings, by the episode's number


class Chunk(NamedTuple):
    """Consecutive steps: action t is taken on observation t, and reward t and observation t+1 follow."""

    observations: Tensor  # (batch, length + 1, n)
    actions: Tensor  # (batch, length, m)
    rewards: Tensor  # (batch, length)
    terminated: Tensor  # (batch, length): the step ended the episode for good, not by a time limit
    valid: Tensor  # (batch, length): false after the end; there the last observation is repeated, the rest 0


def shortest_sampled(length: int, padded: bool) -> int:
    """The minimum average length of episodes that chunks of ``length`` are sampled from.

    Unless padded, shorter episodes are never sampled, so they need not be counted.
    """
    return min(5, length) if padded else length


class ReplayBuffer:
    """The last ``capacity`` observations of each of ``n_envs`` environments.

    An episode of T steps takes T + 1 places: its final observation is kept, without an action.

    The table has room for ``capacity / shortest_episode`` episodes: if episodes are shorter than that on
    average, old ones are dropped before they are overwritten.

    >>> replay = ReplayBuffer(n_envs=2, capacity=100, observation_size=3, action_size=1)
    >>> for t in range(20):
    ...     ended = torch.tensor([t == 9, t == 19])
    ...     replay.add(torch.randn(2, 3), torch.randn(2, 1), torch.randn(2), torch.randn(2, 3), ended)
    >>> chunk = replay.sample(batch=4, length=5)
    >>> chunk.observations.shape, chunk.actions.shape, chunk.rewards.shape
    (torch.Size([4, 6, 3]), torch.Size([4, 5, 1]), torch.Size([4, 5]))
    """

    def __init__(
        self,
        n_envs: int,
        capacity: int,
        observation_size: int,
        action_size: int,
        device: torch.device | str = "cpu",
        shortest_episode: int = 50,
    ) -> None:
        for name, value in (("n_envs", n_envs), ("shortest_episode", shortest_episode)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        if capacity < 2:
            raise ValueError(f"capacity must be at least 2 (one step), got {capacity}.")
        self.n_envs, self.capacity = n_envs, capacity
        self._max_episodes = capacity // shortest_episode + 2
        self._observations = torch.zeros(n_envs, capacity, observation_size, device=device)
        self._actions = torch.zeros(n_envs, capacity, action_size, device=device)
        self._rewards = torch.zeros(n_envs, capacity, device=device)
        count = torch.zeros(n_envs, dtype=torch.int64, device=device)
        self._written = count.clone()  # observations ever written
        self._oldest = count.clone()  # position of the oldest that was ever here: loaded ones may start late
        self._episode = count.clone()  # episodes ever finished: the number of the open one
        self._first = count[:, None].repeat(1, self._max_episodes)  # position of the first observation
        self._end = self._first.clone()  # one past the position of the last
        self._terminated = torch.zeros_like(self._first, dtype=torch.bool)  # ended, and not by a time limit
        self._rows = torch.arange(n_envs, device=device)

    @property
    def device(self) -> torch.device:
        """The device of the buffer and its chunks."""
        return self._observations.device

    @property
    def state(self) -> list[Tensor]:
        """All tensors that `add` and `load_state_dict` change in place."""
        return list(self._tensors().values())

    def add(
        self,
        observations: Tensor,
        actions: Tensor,
        rewards: Tensor,
        next_observations: Tensor,
        ended: Tensor,
        terminated: Tensor | None = None,
    ) -> None:
        """One step of every environment.

        ``observations`` (n_envs, n), the ``actions`` (n_envs, m) taken there, the ``rewards`` (n_envs,)
        received, the ``next_observations`` (n_envs, n) reached, whether the episode ``ended`` (n_envs,)
        there, and whether it was ``terminated`` (n_envs,) by the task, not by a time limit.
        If it did not end, the next call must pass the same observations as its first argument.
        """
        observations = self._checked("observations", observations, self._observations[:, 0])
        actions = self._checked("actions", actions, self._actions[:, 0])
        rewards = self._checked("rewards", rewards, self._rewards[:, 0])
        next_observations = self._checked("next_observations", next_observations, self._observations[:, 0])
        ended = self._checked("ended", ended, self._written).bool()
        terminated = torch.zeros_like(ended) if terminated is None else terminated
        terminated = self._checked("terminated", terminated, ended)

        place = self._written % self.capacity
        self._observations[self._rows, place] = observations
        self._actions[self._rows, place] = actions
        self._rewards[self._rows, place] = rewards
        self._written += 1
        place = self._written % self.capacity
        kept = self._observations[self._rows, place]
        self._observations[self._rows, place] = torch.where(ended[:, None], next_observations, kept)
        self._written += ended

        entry = self._episode % self._max_episodes
        self._end[self._rows, entry] = self._written
        self._terminated[self._rows, entry] = terminated & ended
        self._open_where(ended)

    def close_episodes(self) -> None:
        """End every open episode at its last stored observation, because another will begin."""
        self._open_where(self._written > self._first[self._rows, self._episode % self._max_episodes])

    def _open_where(self, ended: Tensor) -> None:
        """Begin an episode at the next position, where the open one has ended."""
        self._episode += ended
        entry = self._episode % self._max_episodes
        kept = self._first[self._rows, entry]
        self._first[self._rows, entry] = torch.where(ended, self._written, kept)
        self._end[self._rows, entry] = self._written
        self._terminated[self._rows, entry] = torch.zeros_like(ended)

    def n_starts(
        self, length: int, from_start: int = 0, newest: int | None = None, padded: bool = False
    ) -> Tensor:
        """How many different chunks of that length can be sampled, () on the device."""
        return self._starts(length, from_start, newest, padded)[1].sum()

    def sample(
        self,
        batch: int = 50,
        length: int = 50,
        generator: torch.Generator | None = None,
        from_start: int = 0,
        newest: int | None = None,
        padded: bool = False,
    ) -> Chunk:
        """``batch`` chunks of ``length`` steps, drawn uniformly from all that lie within one episode.

        With ``from_start``, from those at the beginning of an episode, or that start within this number of
        first steps; with ``newest``, from those whose end is among this number of newest observations of
        their environment. Open episodes are included up to their latest step. If there is no such chunk, this
        raises an error on the CPU. On other devices, where checking would synchronise, the chunks are NaN:
        see :meth:`n_starts`.

        With ``padded``, chunks may also start so late that a termination cuts them short: the steps missing
        after it are not `Chunk.valid`. Then steps before a termination are sampled as often as others, and
        episodes shorter than a chunk are sampled too.
        """
        first, starts = self._starts(length, from_start, newest, padded)
        ends = starts.flatten().cumsum(0)
        n_starts = ends[-1]
        on_cpu = self.device.type == "cpu"
        if on_cpu and n_starts == 0:
            raise ValueError(f"length must be below that of some stored episode, got {length}.")
        # randint cannot take its bound from the device.
        pick = torch.rand(batch, dtype=torch.float64, device=self.device, generator=generator) * n_starts
        pick = torch.minimum(pick.long(), n_starts - 1)
        entry = torch.searchsorted(ends, pick, right=True)
        begin = (first - ends.view_as(starts) + starts).flatten()[entry] + pick
        position = begin[:, None] + torch.arange(length + 1, device=self.device)
        last = self._end.flatten()[entry][:, None] - 1
        after = position[:, :-1] >= last
        env = (entry // self._max_episodes)[:, None]
        place = env * self.capacity + torch.minimum(position, last) % self.capacity
        observations, actions, rewards = (
            _gather(self._observations, place),
            _gather(self._actions, place[:, :-1]).masked_fill(after[..., None], 0),
            _gather(self._rewards, place[:, :-1]).masked_fill(after, 0),
        )
        if not on_cpu:
            observations, actions, rewards = (
                x.masked_fill(n_starts == 0, torch.nan) for x in (observations, actions, rewards)
            )
        terminated = self._terminated.flatten()[entry][:, None] & (position[:, 1:] == last)
        return Chunk(observations, actions, rewards, terminated, ~after)

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, without unused memory. Reads from the device."""
        return self.cut(self.state_bytes(self.capacity))

    def cut(self, max_bytes: int) -> dict[str, Tensor]:
        """A :meth:`state_dict` of at most ``max_bytes``: the newest steps that fit.

        The oldest episode that is kept may have lost its beginning, as in a buffer that is full.
        """
        tables = self.state_bytes(0)
        fitting = (max_bytes - tables) // (self.state_bytes(1) - tables)
        if fitting < 2:
            raise ValueError(
                f"max_bytes must be at least {self.state_bytes(2)} for one step, got {max_bytes}."
            )
        used = max(2, int(self._written.max()))  # in the environment with the most
        return _fitted(self._tensors(), min(fitting, used, self.capacity), self._max_episodes)

    def state_bytes(self, places: int) -> int:
        """The size of a state with this many observations per environment."""
        rings = sum(self._tensors()[name].nbytes for name in _STEPS)
        tables = sum(x.nbytes for x in self.state) - rings
        return tables + rings // self.capacity * places

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a :meth:`state_dict` or a :meth:`cut`, which may be of another capacity.

        A whole state gives the same chunks from the same random numbers as the buffer it came from.
        """
        ours = self._tensors()
        if "terminated" not in state and "first" in state:  # saved before terminations were stored
            state = {**state, "terminated": torch.zeros_like(state["first"], dtype=torch.bool)}
        if state.keys() != ours.keys():
            raise ValueError(f"state must have the entries {', '.join(ours)}, got {', '.join(state)}.")
        for name, x in ours.items():
            theirs = state[name]
            sizes = (x.shape[0], *x.shape[2:]), (theirs.shape[0], *theirs.shape[2:])
            if sizes[0] != sizes[1] or x.dim() != theirs.dim() or x.dtype != theirs.dtype:
                raise ValueError(
                    f"state[{name!r}] must be {x.dtype} of {tuple(x.shape)} up to the second size, "
                    f"got {theirs.dtype} of {tuple(theirs.shape)}."
                )
        state = {name: x.to(self.device) for name, x in state.items()}
        for name, x in _fitted(state, self.capacity, self._max_episodes).items():
            ours[name].copy_(x)  # in place: a captured graph holds these addresses

    def _starts(
        self, length: int, from_start: int, newest: int | None, padded: bool
    ) -> tuple[Tensor, Tensor]:
        """For each episode in the table, the first starting position and the number of chunks."""
        for name, value in (("length", length), ("newest", newest)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        oldest = torch.maximum(self._oldest, self._written - self.capacity)  # that is still there
        first = torch.maximum(self._first, oldest[:, None])
        if newest is not None:
            first = torch.maximum(first, (self._written - newest - length)[:, None])
        # The shortest chunk allowed in each episode: one step if it may be cut short.
        least = torch.where(self._terminated, 1, length) if padded else length
        starts = (self._end - first - least).clamp(min=0)
        if padded and newest is not None:
            starts = starts * (self._end > (self._written - newest)[:, None])
        if from_start:
            starts = starts.clamp(max=int(from_start)) * (first == self._first)
        return first, starts

    def _checked(self, name: str, x: Tensor, like: Tensor) -> Tensor:
        if x.shape != like.shape:
            raise ValueError(f"{name} must have shape {tuple(like.shape)}, got {tuple(x.shape)}.")
        # An asynchronous copy is safe unless x is pinned and soon overwritten: other memory is staged first.
        return x.to(self.device, like.dtype, non_blocking=True)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, f"_{name}") for name in (*_STEPS, *_COUNTS, *_EPISODES)}


def _gather(rings: Tensor, place: Tensor) -> Tensor:
    """Entries of rings (n, capacity, ...) at flat indices over all rings: (*place.shape, ...)."""
    return rings.flatten(0, 1).index_select(0, place.flatten()).view(*place.shape, *rings.shape[2:])


def _fitted(state: dict[str, Tensor], capacity: int, max_episodes: int) -> dict[str, Tensor]:
    """The same experience, as far as it fits, in rings of other sizes. Shares no memory with ``state``."""
    written, episodes = state["written"], state["episode"] + 1
    kept = min(capacity, state["rewards"].shape[1])
    return {
        **{name: _ring(state[name], written, capacity) for name in _STEPS},
        "written": written.clone(),
        "oldest": torch.maximum(state["oldest"], written - kept),
        "episode": state["episode"].clone(),
        **{name: _ring(state[name], episodes, max_episodes) for name in _EPISODES},
    }


def _ring(old: Tensor, written: Tensor, capacity: int) -> Tensor:
    """Move the newest entries of a ring (n, old capacity, ...) to one of (n, capacity, ...)."""
    kept = min(capacity, old.shape[1])
    rows = torch.arange(old.shape[0], device=old.device)[:, None]
    position = written[:, None] - kept + torch.arange(kept, device=old.device)
    new = old.new_zeros(old.shape[0], capacity, *old.shape[2:])
    new[rows, position % capacity] = old[rows, position % old.shape[1]]
    return new
