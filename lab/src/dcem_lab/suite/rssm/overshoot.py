"""The multi-step likelihood bound of an RSSM (latent overshooting), its posterior being the observation.

A chunk has observations x_0 … x_L, actions u_0 … u_{L−1} and rewards r_1 … r_L. A filter pass over the true
observations gives h_t for every t, from h_0 = 0. From every start t, with ĥ_t = h_t and x̂_t = x_t, the model
is then rolled out open loop,

    ĥ_{t+d} = GRU(ĥ_{t+d−1}, [x̂_{t+d−1}, u_{t+d−1}]),        x̂_{t+d} ~ p(x | ĥ_{t+d}) or its mean,

and the loss is minus the bound on the log-likelihood, averaged over the distances d = 1 … D:

    1/D Σ_d 1/(L−d+1) Σ_{t=0}^{L−d} −ln p(x_{t+d} | ĥ_{t+d}) − w ln p(r_{t+d} | ĥ_{t+d}, x̂_{t+d}).

A model that predicts terminations adds −ln p(e_{t+d} | ĥ_{t+d}, x̂_{t+d}), and a chunk that a termination cut
short counts up to there: later rows have no weight in the means.

Since x is observed, PlaNet's KL from posterior to prior is, up to a constant, minus the log-likelihood of the
observation under the prior, and there is no posterior whose gradient would have to be stopped. Gradients flow
through the rollout and on through h_t into the filter pass. Rows of all distances, R in all, lie one
after another (`rows.py`).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from dcem_lab.suite.rssm.fast.unroll import Unrolled, fast_head, fast_unroll
from dcem_lab.suite.rssm.model import RSSM
from dcem_lab.suite.rssm.nets import EnsembleMLP
from dcem_lab.suite.rssm.rows import blocks, equal_shares, shares, targets


def plain_unroll(
    model: RSSM, x: Tensor, actions: Tensor, noise: Tensor | None, spans: list[slice]
) -> Unrolled:
    """Filter and open-loop rollouts, written like the equations: the reference for `fast_unroll`.

    Args:
        model: the world model of M members.
        x: features (L, B, X) of the observations x_0 … x_{L−1}.
        actions: (L, B, U).
        noise: (M, R, X) standard normal for the R rows of all distances, or None to go on from means.
        spans: where each distance's rows lie (`blocks`).
    """
    length, chunks, _ = x.shape
    members, X = model.config.members, model.features
    inputs = torch.cat([x, actions], dim=-1).expand(members, -1, -1, -1)
    hidden = [x.new_zeros(members, chunks, model.config.hidden)]
    for t in range(length - 1):
        hidden.append(model.gru(inputs[:, t], hidden[-1]))

    h, x_hat = torch.cat(hidden, dim=1), x.flatten(0, 1).expand(members, -1, -1)
    states, raws = [], []
    for d, span in enumerate(spans):
        rows = span.stop - span.start
        h, previous = h[:, :rows], x_hat[:, :rows]
        action = actions[d:].flatten(0, 1).expand(members, -1, -1)
        h = model.gru(torch.cat([previous, action], dim=-1), h)
        head = model.observation_head(h)
        x_hat, raw = head[..., :X], head[..., X:]
        if model.config.residual:
            x_hat = previous + x_hat
        if noise is not None:
            x_hat = x_hat + model.deviation(raw, x_hat) * noise[:, span]
        states.append(torch.cat([h, x_hat], dim=-1))
        raws.append(raw)
    found = torch.cat(states, dim=1)
    return Unrolled(found, found[..., model.config.hidden :], torch.cat(raws, dim=1))


def multistep_loss(
    model: RSSM,
    obs: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor | None = None,
    valid: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
    fast: bool = True,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of this module's head on a batch of chunks, summed over the members (each learns as if alone).

    With ``config.loss`` "mse" the log-likelihoods become mean squared errors of features and reward, with
    "rmse" their square roots at each distance, so that near and far predictions weigh alike. Nothing here
    waits for the device or depends on values: a whole update can be captured as a CUDA graph.

    Args:
        model: the world model.
        obs: (B, L + 1, obs_dim).
        actions: (B, L, action_dim).
        rewards: (B, L), the reward each action earned.
        terminated: (B, L), whether the step ended the episode; for models with a termination head.
        valid: (B, L), false after an end, where chunks are padded; for models with a termination head.
        generator: where ``config.sample`` draws its noise from.
        fast: weight gradients of the unrolled steps in one product each, instead of plain autograd.
        dtype: float16 for fast steps with activations in half precision; None for that of the observations.

    Returns:
        The loss, and detached scalars, means over the members: ``loss``, its parts ``obs_loss`` and
        ``reward_loss`` (and ``termination_loss``), root mean squared errors ``obs_rmse/d`` (normalised
        features) and ``reward_rmse/d`` (scaled, where the model does that) at the distances 1 and D.

    >>> from dcem_lab.suite.rssm import RSSMConfig
    >>> model = RSSM(3, 1, RSSMConfig(hidden=8, width=8, distance=4))
    >>> obs, actions, rewards = torch.zeros(5, 11, 3), torch.zeros(5, 10, 1), torch.zeros(5, 10)
    >>> loss, metrics = multistep_loss(model, obs, actions, rewards)
    >>> loss.backward()
    """
    config, D = model.config, model.config.distance
    if dtype not in (None, torch.float16) or (dtype is not None and not fast):
        raise ValueError(f"dtype must be None, or float16 for fast steps, got {dtype}")
    if obs.dtype == torch.float16:
        raise ValueError("obs must be in single or double precision: dtype=float16 is for activations")
    _check(model, obs, actions, rewards=rewards, terminated=terminated, valid=valid)
    x = model.normalizer.encode(obs).transpose(0, 1)
    u, r = actions.transpose(0, 1), model.reward_scale.encode(rewards).transpose(0, 1)
    spans = blocks(u.shape[0], u.shape[1], D)

    noise = None
    if config.sample:
        shape = (config.members, spans[-1].stop, model.features)
        noise = torch.randn(shape, generator=generator, device=x.device, dtype=x.dtype)
    steps = model, x[:-1], u, noise, spans
    states, mean, raw = fast_unroll(*steps, dtype) if fast else plain_unroll(*steps)
    std = model.deviation(raw, mean)
    if noise is not None:
        mean = mean - std * noise
    ends = model.termination_head
    reward = _head(model.reward_head, states, fast)
    share = equal_shares(*r.shape, D, r.device, r.dtype)
    if ends is not None and valid is not None:
        share = shares(valid.transpose(0, 1).to(r.dtype), D)

    obs_error = (targets(x[1:], D) - mean).square()
    reward_error = (targets(r, D) - reward).square()
    squared = torch.stack([obs_error.mean(dim=-1), reward_error])
    if config.loss == "nll":
        obs_nll = (0.5 * obs_error / std.square() + std.log()).sum(dim=-1)
        obs_nll = obs_nll + 0.5 * model.features * math.log(2 * math.pi)
        reward_nll = 0.5 * reward_error + 0.5 * math.log(2 * math.pi)
        table = _per_distance(torch.stack([obs_nll, reward_nll]), share)
        errors = _per_distance(squared.detach(), share)
    else:
        errors = _per_distance(squared, share)
        # As in the planner's cost, the square root needs a finite slope at zero.
        table = errors if config.loss == "mse" else (errors + torch.finfo(errors.dtype).tiny).sqrt()
    obs_loss, reward_loss = table.mean(dim=-1)
    loss = obs_loss + config.reward_weight * reward_loss
    parts = {"obs_loss": obs_loss, "reward_loss": reward_loss}
    if ends is not None:
        happened = torch.zeros_like(r) if terminated is None else terminated.transpose(0, 1).to(r.dtype)
        logits = _head(ends, states, fast)
        entropy = F.binary_cross_entropy_with_logits(
            logits, targets(happened, D).expand_as(logits), reduction="none"
        )
        parts["termination_loss"] = _per_distance(entropy, share).mean(dim=-1)
        loss = loss + parts["termination_loss"]

    rmse = errors.detach().mean(dim=1).sqrt()
    means = torch.stack([loss, *parts.values()]).detach().mean(dim=-1)
    metrics = dict(zip(["loss", *parts], means.unbind(), strict=True))
    for d in {1, D}:
        metrics[f"obs_rmse/{d}"], metrics[f"reward_rmse/{d}"] = rmse[:, d - 1]
    return loss.sum(), metrics


def _head(head: EnsembleMLP, states: Tensor, fast: bool) -> Tensor:
    """(M, R, H + X) → (M, R)."""
    return (fast_head(head, states) if fast else head(states)).squeeze(-1)


def _per_distance(errors: Tensor, share: Tensor) -> Tensor:
    """Means over the rows of each distance: (..., M, R) → (..., M, D), with the shares (R, D) of `rows`."""
    return (errors.unsqueeze(-1) * share).sum(dim=-2)


def _check(model: RSSM, obs: Tensor, actions: Tensor, **steps: Tensor | None) -> None:
    if obs.ndim != 3 or obs.shape[1] < 2 or obs.shape[2] != model.obs_dim:
        raise ValueError(f"obs must have shape (B, L + 1, {model.obs_dim}), got {tuple(obs.shape)}")
    chunks, length = obs.shape[0], obs.shape[1] - 1
    for name, value in {"actions": actions, **steps}.items():
        expected = (chunks, length, model.action_dim) if name == "actions" else (chunks, length)
        if value is not None and value.shape != expected:
            raise ValueError(f"{name} must have shape {expected} beside these obs, got {tuple(value.shape)}")
    if model.config.distance > length:
        raise ValueError(f"obs must hold at least distance={model.config.distance} steps, got {length}")
