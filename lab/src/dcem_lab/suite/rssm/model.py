"""The proprioceptive RSSM: a recurrent world model that observes what it predicts.

With h the deterministic state (a GRU), x the observation, u the action and r the reward:

    h_{t+1} = GRU(h_t, [x_t, u_t])
    x_{t+1} ~ N(f(h_{t+1}), σ(h_{t+1})²)          (f(h_{t+1}) + x_t with ``residual=True``)
    r_{t+1} ~ N(g(h_{t+1}, x_{t+1}), 1)
    e_{t+1} ~ Bernoulli(p(h_{t+1}, x_{t+1}))      (only with ``termination=True``)

The reward that the action u_t earns is r_{t+1}: it belongs to the state arrived at, whose h has seen u_t.
Where tasks can terminate, e_{t+1} says whether that state ended the episode. Nothing is earned after an end,
so what the planner counts is r_{t+1} Π_{s ≤ t} (1 − p_s).
f, g and p have two fully connected layers of 200 units. The loss is in `dcem_lab.suite.rssm.overshoot`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcem_lab.runs import require
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.rssm.nets import ACTIVATIONS, EnsembleGRU, EnsembleMLP, MemorylessGRU
from dcem_lab.suite.rssm.normalize import Normalizer, RewardScale

LOSSES = ("nll", "mse", "rmse")


@dataclass(frozen=True)
class RSSMConfig(Settings):
    """Everything about an `RSSM` but the sizes of observation and action; by default the paper's setting.

    Attributes:
        hidden: units of the GRU.
        width: units of every fully connected layer.
        layers: hidden layers of the observation and reward heads.
        activation: activation of the fully connected layers: relu, elu or gelu.
        residual: predict the change of the observation instead of the observation.
        normalize: scale observations by statistics of the data (`RSSM.normalizer`).
        angles: indices of the observation that are angles, encoded as sine and cosine.
        predict_std: predict a standard deviation for every feature (needs ``loss="nll"``).
        std: minimum predicted standard deviation, or the fixed one with ``predict_std=False``.
        sample: in training, continue from sampled instead of mean observations.
        loss: negative log-likelihood (nll), or (root) mean squared errors of the means (mse, rmse).
        reward_weight: weight of the reward loss relative to the observation loss.
        distance: D, maximum number of open-loop prediction steps in training.
        members: M, number of models in the ensemble.
        pessimism: the planner's reward is mean − pessimism · standard deviation over the members.
        termination: predict whether a step ends the episode, for tasks that can terminate.
        scale_rewards: predict rewards in units of their root mean square (`RSSM.reward_scale`).
        memory: keep a recurrent state h; False to compute it from x and u alone.
    """

    hidden: int = setting(200, least=1)
    width: int = setting(200, least=1)
    layers: int = setting(2, least=0)
    activation: str = setting("relu", among=tuple(ACTIVATIONS))
    residual: bool = False
    normalize: bool = False
    angles: tuple[int, ...] = setting((), least=0)
    predict_std: bool = True
    std: float = setting(0.1, above=0)
    sample: bool = True
    loss: str = setting("nll", among=LOSSES)
    reward_weight: float = setting(1.0, least=0)
    distance: int = setting(12, least=1)
    members: int = setting(1, least=1)
    pessimism: float = setting(0.0, least=0)
    termination: bool = False
    scale_rewards: bool = False
    memory: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = not self.predict_std or self.loss == "nll"
        require(fits, "predict_std", self.predict_std, f"False unless loss is 'nll', which is {self.loss!r}")


def pessimistic(x: Tensor, pessimism: float, dim: int) -> Tensor:
    """mean − pessimism · standard deviation."""
    mean = x.mean(dim=dim)
    if x.shape[dim] == 1 or pessimism == 0:
        return mean
    # The square root's slope is infinite at zero: numbers that agree would make NaN gradients.
    return mean - pessimism * (x.var(dim=dim, correction=0) + torch.finfo(x.dtype).tiny).sqrt()


class RSSM(nn.Module):
    """The world model, an ensemble of M ≥ 1 members that never mix before the planner's cost.

    A state is one tensor (..., M (H + X)): for each member its [h, x], x in the features of `normalizer`.
    With ``config.termination`` a member's part is [h, x, s]: s, the probability that the episode still goes
    on, is one wherever something was observed.
    A planner can take it as it is: `step` works on states and actions with any leading dimensions.

    Parameters, all with a leading M: ``gru`` (`EnsembleGRU` on [x, u]), ``observation_head`` (`EnsembleMLP`,
    h → mean, or mean and raw deviation: σ = softplus(raw) + std), ``reward_head`` (`EnsembleMLP`, [h, x] → r)
    and ``termination_head`` (`EnsembleMLP`, [h, x] → logit of p; None without ``config.termination``).

    Args:
        obs_dim: numbers in an observation.
        action_dim: numbers in an action.
        config: all else.
        generator: where the initial weights come from.

    >>> model = RSSM(obs_dim=17, action_dim=6)
    >>> state = model.initial(torch.zeros(4, 17))
    >>> state, cost = model.step(state, torch.zeros(4, 6))
    >>> state.shape, cost.shape
    (torch.Size([4, 217]), torch.Size([4]))
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        config: RSSMConfig | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config = config = config or RSSMConfig()
        self.normalizer = Normalizer(obs_dim, config.angles, config.normalize)
        self.reward_scale = RewardScale(config.scale_rewards)
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.features = X = self.normalizer.features
        H, M = config.hidden, config.members
        self.member_dim = H + X + config.termination
        self.state_dim = M * self.member_dim
        layers = [config.width] * config.layers
        outputs = 2 * X if config.predict_std else X
        gru = EnsembleGRU if config.memory else MemorylessGRU
        self.gru: EnsembleGRU | MemorylessGRU = gru(X + action_dim, H, M, generator)
        self.observation_head = EnsembleMLP([H, *layers, outputs], config.activation, M, generator)
        self.reward_head = EnsembleMLP([H + X, *layers, 1], config.activation, M, generator)
        self.termination_head: EnsembleMLP | None = None
        if config.termination:
            self.termination_head = EnsembleMLP([H + X, *layers, 1], config.activation, M, generator)

    def initial(self, obs: Tensor) -> Tensor:
        """The state (..., state_dim) at a first observation (..., obs_dim): h is zero."""
        return self._join(obs.new_zeros(()), obs)

    def observe(self, state: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """The state after ``action`` led from ``state`` to ``next_obs``: h advances, x is what was seen."""
        hidden, _, _ = self._advance(state, action)
        return self._join(hidden.transpose(0, 1).reshape(*state.shape[:-1], *hidden.shape[::2]), next_obs)

    def step(
        self, state: Tensor, action: Tensor, noise: Tensor | None = None, pessimism: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """One imagined step: the next state and its cost, −(mean − pessimism · std of the members' rewards).

        A member's reward counts with its probability that the episode still went on before the step.

        Args:
            state: (..., state_dim).
            action: (..., action_dim).
            noise: (..., M X), standard normal, to sample the next observation; its mean is taken without.
            pessimism: None for the config's, the planner's.

        Returns:
            The next state (..., state_dim) and its cost (...).
        """
        batch = state.shape[:-1]
        hidden, x, going_on = self._advance(state, action)
        mean, std = self.predict(hidden, x)
        if noise is None:
            x = mean
        else:
            x = mean + std * noise.reshape(-1, self.config.members, self.features).transpose(0, 1)
        states = torch.cat([hidden, x], dim=-1)
        rewards = self.reward_head(states)
        if self.termination_head is not None:
            rewards = rewards * going_on
            going_on = going_on * torch.sigmoid(-self.termination_head(states))
            states = torch.cat([states, going_on], dim=-1)
        cost = self.reward_scale.decode(self.cost(rewards.squeeze(-1), pessimism))
        return states.transpose(0, 1).reshape(*batch, self.state_dim), cost.reshape(batch)

    def predict(self, hidden: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (M, N, X) of x_{t+1} given h_{t+1} (M, N, H) and x_t (M, N, X)."""
        head = self.observation_head(hidden)
        mean = head[..., : self.features]
        if self.config.residual:
            mean = previous + mean
        return mean, self.deviation(head[..., self.features :], mean)

    def deviation(self, raw: Tensor, mean: Tensor) -> Tensor:
        """The standard deviation that the head's raw outputs stand for, shaped as ``mean``."""
        if self.config.predict_std:
            return F.softplus(raw) + self.config.std
        return torch.full_like(mean, self.config.std)

    def decode(self, state: Tensor) -> Tensor:
        """The observation (..., obs_dim) in a state: the members' mean, in the units of the environment."""
        return self.normalizer.decode(self.observed(state).mean(dim=-2))

    def going_on(self, state: Tensor) -> Tensor:
        """The probability (...) that the episode still goes on in a state, the members' mean."""
        if not self.config.termination:
            return state.new_ones(state.shape[:-1])
        return self.members(state)[..., -1].mean(dim=-1)

    def cost(self, rewards: Tensor, pessimism: float | None = None) -> Tensor:
        """The planner's cost (N,) of what the members say that steps earn, (M, N), in the units of both."""
        return -pessimistic(rewards, self.config.pessimism if pessimism is None else pessimism, dim=0)

    def members(self, state: Tensor) -> Tensor:
        """(..., state_dim) → (..., M, member_dim)."""
        return state.unflatten(-1, (self.config.members, self.member_dim))

    def observed(self, state: Tensor) -> Tensor:
        """What the members observe in states (..., state_dim), in features: (..., M, X)."""
        return self.members(state)[..., self.config.hidden : self.config.hidden + self.features]

    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next h (M, N, H), x (M, N, X) as it was and, of models that know an end, s (M, N, 1)."""
        if state.shape[-1] != self.state_dim:
            raise ValueError(f"state must end in {self.state_dim} numbers, got shape {tuple(state.shape)}")
        if action.shape != (*state.shape[:-1], self.action_dim):
            raise ValueError(
                f"action must have shape {(*state.shape[:-1], self.action_dim)}, got {tuple(action.shape)}"
            )
        H, M = self.config.hidden, self.config.members
        members = state.reshape(-1, M, self.member_dim).transpose(0, 1)
        hidden, x, going_on = members.tensor_split((H, H + self.features), -1)
        actions = action.reshape(1, -1, self.action_dim).expand(M, -1, -1)
        return self.gru(torch.cat([x, actions], dim=-1), hidden), x, going_on

    def _join(self, hidden: Tensor, obs: Tensor) -> Tensor:
        """h (..., M, H), or what spreads to it, and a raw observation (..., obs_dim) → (..., state_dim)."""
        batch, M = obs.shape[:-1], self.config.members
        x = self.normalizer.encode(obs).unsqueeze(-2).expand(*batch, M, -1)
        hidden = hidden.expand(*batch, M, self.config.hidden)
        going_on = x.new_ones(*batch, M, self.config.termination)
        return torch.cat([hidden, x, going_on], dim=-1).flatten(-2)
