"""The clipped loss: against torch's own Gaussian, by hand and, where it is installed, torchrl."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor

from dcem_lab.suite.ppo_loss import (
    clipped_fraction,
    clipped_loss,
    divergence,
    log_prob,
    standardized,
    value_loss,
)


def test_log_prob_is_that_of_torch(double: None, generator: Generator) -> None:
    actions, mean, log_std = torch.randn(3, 50, 6, generator=generator)
    normal = torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(log_prob(actions, mean, log_std), normal.log_prob(actions).sum(-1))
    same = log_prob(actions, mean, log_std[0])
    torch.testing.assert_close(
        same, torch.distributions.Normal(mean, log_std[0].exp()).log_prob(actions).sum(-1)
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 1.0, -1.1, -1.0),
        (1.5, 1.0, -1.2, 0.0),  # good enough already
        (0.5, 1.0, -0.5, -1.0),  # a mistake is undone, however far it went
        (0.5, -1.0, 0.8, 0.0),
        (1.5, -1.0, 1.5, 1.0),
    ],
)
def test_the_gain_is_clipped_and_the_loss_is_not(
    ratio: float, advantage: float, loss: float, slope: float
) -> None:
    x = torch.tensor([ratio], requires_grad=True)
    found = clipped_loss(x, torch.tensor([advantage]), clip=0.2)
    assert found.item() == pytest.approx(loss)
    (gradient,) = torch.autograd.grad(found, x)
    assert gradient.item() == slope


def test_a_thousand_batches_of_torchrl() -> None:
    pytest.importorskip("torchrl", reason="torchrl is not installed", exc_type=ImportError)
    from tensordict import TensorDict
    from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule
    from tensordict.nn import ProbabilisticTensorDictSequential as Sequential
    from torch.distributions import Independent, Normal
    from torchrl.objectives import ClipPPOLoss

    class Policy(torch.nn.Module):
        """Parameters in an observation's place: what the actor would say there."""

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mean, log_std = x.chunk(2, dim=-1)
            return mean, log_std.exp()

    actor = Sequential(
        TensorDictModule(Policy(), in_keys=["said"], out_keys=["loc", "scale"]),
        ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"],
            out_keys=["action"],
            distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1),
        ),
    )
    critic = TensorDictModule(torch.nn.Identity(), in_keys=["valued"], out_keys=["state_value"])
    theirs = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_bonus=False,
        loss_critic_type="l2",
        normalize_advantage=False,
        critic_coeff=1.0,
    )
    theirs.set_keys(sample_log_prob="old")
    for seed in range(1000):
        generator = Generator().manual_seed(seed)
        B, m = 1 + seed % 60, 1 + seed % 6
        actions, mean, log_std = torch.randn(3, B, m, generator=generator)
        log_std = 0.3 * log_std
        now = log_prob(actions, mean, log_std)
        old = now + 0.4 * torch.randn(B, generator=generator)
        advantage, values, targets = torch.randn(3, B, generator=generator)
        found = theirs(
            TensorDict(
                {
                    "said": torch.cat([mean, log_std], dim=-1),
                    "action": actions,
                    "old": old,
                    "advantage": advantage.unsqueeze(-1),
                    "valued": values.unsqueeze(-1),
                    "value_target": targets.unsqueeze(-1),
                },
                [B],
            )
        )
        ratios = (now - old).exp()
        for ours, key in (
            (clipped_loss(ratios, advantage, clip=0.2), "loss_objective"),
            (value_loss(values, targets), "loss_critic"),
        ):
            torch.testing.assert_close(ours, found[key].detach().squeeze(), atol=1e-5, rtol=1e-5)
        assert clipped_fraction(ratios, 0.2) == pytest.approx(found["clip_fraction"].item(), abs=1e-6)


def test_divergence_is_that_of_gaussians(generator: Generator) -> None:
    """From π = N(0, 1) to N(0.5, 1): KL = 0.125."""
    draws = torch.randn(200_000, 1, generator=generator)
    zero = torch.tensor(0.0)
    log_ratios = log_prob(draws, zero + 0.5, zero) - log_prob(draws, zero, zero)
    assert divergence(log_ratios) == pytest.approx(0.125, rel=0.02)
    assert divergence(torch.zeros(3)) == 0


def test_what_is_standardized_has_no_scale() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    torch.testing.assert_close(standardized(1000 * x + 7), standardized(x))
    assert standardized(x).std(correction=0) == pytest.approx(1)
    assert math.isfinite(standardized(torch.ones(4)).sum())
