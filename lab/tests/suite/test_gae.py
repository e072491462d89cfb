"""Advantages: against a sum written out, a hand loop and, where it is installed, torchrl."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from dcem_lab.suite.gae import advantages

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def random_batch(seed: int, T: int, E: int, dtype: torch.dtype = torch.float64) -> Batch:
    generator = Generator().manual_seed(seed)
    rewards, values, next_values = torch.randn(3, T, E, generator=generator, dtype=dtype)
    terminated, truncated = torch.rand(2, T, E, generator=generator) < 0.15
    return rewards, values, next_values, terminated, terminated | truncated


def written_out(batch: Batch, gamma: float, lam: float) -> Tensor:
    """A_t = Σ_k (γ λ)^k δ_{t+k}, up to the episode's end."""
    rewards, values, next_values, terminated, ended = (x.tolist() for x in batch)
    T, E = len(rewards), len(rewards[0])
    result = torch.zeros(T, E, dtype=torch.float64)
    for e in range(E):
        for t in range(T):
            for k in range(T - t):
                future = 0.0 if terminated[t + k][e] else gamma * next_values[t + k][e]
                result[t, e] += (gamma * lam) ** k * (rewards[t + k][e] + future - values[t + k][e])
                if ended[t + k][e]:
                    break
    return result


@given(
    seed=st.integers(0, 1000),
    T=st.integers(1, 12),
    E=st.integers(1, 4),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_advantages_are_discounted_sums_of_errors(
    seed: int, T: int, E: int, gamma: float, lam: float
) -> None:
    batch = random_batch(seed, T, E)
    torch.testing.assert_close(advantages(*batch, gamma, lam), written_out(batch, gamma, lam))


def test_a_thousand_batches_of_torchrl() -> None:
    functional = pytest.importorskip(
        "torchrl.objectives.value.functional", reason="torchrl is not installed", exc_type=ImportError
    )
    for seed in range(1000):
        batch = random_batch(seed, T=1 + seed % 40, E=1 + seed % 7, dtype=torch.float32)
        rewards, values, next_values, terminated, ended = (x.T.unsqueeze(-1) for x in batch)
        expected, _ = functional.generalized_advantage_estimate(
            0.99, 0.95, values, next_values, rewards, ended, terminated
        )
        got = advantages(*batch, gamma=0.99, lam=0.95)
        torch.testing.assert_close(got, expected.squeeze(-1).T, atol=1e-5, rtol=0)


def test_a_time_limit_is_not_an_end_of_the_task() -> None:
    """With the true values of a reward that never stops, nothing is a surprise, time limit or not."""
    worth = torch.full((5, 1), 1 / (1 - 0.9))
    ones, no = torch.ones(5, 1), torch.zeros(5, 1, dtype=torch.bool)
    limit = no.clone()
    limit[2] = True
    for ended in (no, limit):
        found = advantages(ones, worth, worth, no, ended, gamma=0.9, lam=0.95)
        torch.testing.assert_close(found, torch.zeros(5, 1), atol=1e-5, rtol=0)
    found = advantages(ones, worth, worth, limit, limit, gamma=0.9, lam=0.95)
    assert found[2].item() == pytest.approx(-9, rel=1e-5)  # a future worth ten, discounted, is gone
    assert found[3:].abs().max() < 1e-5
