"""The planner of an agent: the (differentiable) cross-entropy method on a world model."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from dcem import DCEM, MPC, MPPI, Decoder, Gaussian, capture
from dcem.backward import Backward, Unroll
from dcem_lab.runs import require
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.agents.guide import Guide, InSituations, Situation
from dcem_lab.suite.agents.points_in_a_row import PointsInARow
from dcem_lab.suite.agents.residual_decoder import ResidualDecoder
from dcem_lab.suite.agents.search import SoftTopK, WeightedElites
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.rssm.fast.engine import Imagination
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout, fused_rollout
from dcem_lab.suite.rssm.fast.native import fits as has_kernels
from dcem_lab.suite.rssm.fast.rollout_native import NativeJudge, NativeRollout

try:
    from dcem_lab.suite.agents import judge_triton
except ImportError:  # no Triton on a machine without CUDA
    judge_triton = None  # type: ignore[assignment]

_UNROLL = Unroll()
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class PlannerConfig(Settings):
    """How much to plan. The defaults are the paper's, over full action sequences.

    Attributes:
        samples: N, samples per iteration.
        elites: k, elites per iteration.
        iterations: T, iterations per plan.
        horizon: H, planning horizon in actions.
        latent_points: K, latent points per plan, each decoded to `horizon` actions, one after the other: a
            longer plan with the same decoder. 1 without one.
        sigma: initial standard deviation of every action or latent coordinate.
        tau: temperature of the soft top-k; 0 for the hard one.
        dtype: precision of model rollouts: float32, float16 or bfloat16. The search is in float32. On a CPU
            float16 means float32, and so does bfloat16 where there are no instructions for it.
        temperature: weight elites by softmax(−cost / (temperature · standard deviation of all costs)); null
            for the soft top-k.
        least_sigma: minimum standard deviation of the search.
        value_pessimism: the terminal value of a plan, if there is one, is mean − value_pessimism · standard
            deviation over critics and members.
        policy_plans: P, number of the policy's plans that compete with the samples in every iteration; the
            search starts from the first. 0 iterations are the policy alone.
        policy_noise: standard deviation of the noise on the actions of these plans, except the first.
        policy_sigma: half of the initial samples are centred on the policy's plan, with this standard
            deviation; the others on zero, with sigma.
    """

    samples: int = setting(1000, least=1)
    elites: int = setting(100, least=1)
    iterations: int = setting(10, least=0)
    horizon: int = setting(12, least=1)
    latent_points: int = setting(1, least=1)
    sigma: float = setting(1.0, above=0)
    tau: float = setting(0.0, least=0)
    dtype: str = setting("float32", among=tuple(DTYPES))
    temperature: float | None = setting(None, above=0)
    least_sigma: float = setting(0.0, least=0)
    value_pessimism: float = setting(0.5, least=0)
    policy_plans: int = setting(0, least=0)
    policy_noise: float = setting(0.2, least=0)
    policy_sigma: float = setting(0.5, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.elites <= self.samples, "elites", self.elites, f"from 1 to samples={self.samples}")
        require(self.iterations > 0 or self.policy_plans > 0, "iterations", 0, "at least 1 without a policy")
        fits = self.policy_plans <= self.samples
        require(fits, "policy_plans", self.policy_plans, f"from 0 to samples={self.samples}")

    def mpc(
        self,
        model: RSSM,
        imagination: Any,
        decoder: Decoder | None = None,
        backward: Backward = _UNROLL,
        guide: Guide | None = None,
    ) -> MPC:
        """The search on the model, or on an equivalent, faster implementation of it.

        With a guide it plans from the output of `situation` for model states.
        """
        guided = guide is not None and decoder is None and self.policy_plans > 0
        latent: Any = decoder
        if self.latent_points > 1:
            require(decoder is not None, "latent_points", self.latent_points, "1 without a decoder")
            latent = PointsInARow(latent, self.latent_points)
        view: Any = imagination if guide is None else InSituations(imagination)
        mpc = MPC(
            view,
            self.horizon * self.latent_points,
            solver=self.solver(guided),
            decoder=latent,
            action_dim=model.action_dim,
            discount=1.0 if guide is None else guide.value.gamma,
            value=None if guide is None else guide.worth,
            proposals=(lambda situation: situation.plans) if guided else None,
            cold_start="proposal" if guided else "centre",
            backward=backward,
        )
        return mpc.to(next(model.parameters()).device)

    def solver(self, guided: bool = False) -> DCEM | MPPI:
        """The search; a guided one starts from a policy's plan."""
        settings: dict[str, Any] = {
            "n_samples": self.samples,
            "n_elite": self.elites,
            "n_iters": self.iterations,
            "sigma_min": self.least_sigma,
            "normalize": True,
            "distribution": Gaussian(
                sigma=self.policy_sigma if guided else self.sigma, estimator="likelihood"
            ),
            "broad": self.sigma if guided else None,
        }
        if self.temperature is None:
            return SoftTopK(tau=self.tau, **settings)
        return WeightedElites(temperature=self.temperature, **settings)

    def situation(
        self, states: Tensor, guide: Guide | None, decoder: Decoder | None, noise: Tensor | None
    ) -> Any:
        """The start of a plan: states (E, s), with plans of the policy if they are used.

        Their noise is taken from the noise (E, N, n) of the first iteration: that of its last samples, which
        are not centred on the policy's plan.
        """
        residual = isinstance(decoder, ResidualDecoder)
        P = 1 if residual else self.policy_plans if decoder is None else 0
        if guide is None or P == 0:
            return states
        epsilon = states.new_zeros(len(states), P, self.horizon, guide.model.action_dim)
        if P > 1:
            assert noise is not None
            drawn = noise[:, 1 - P :].unflatten(-1, epsilon.shape[-2:])
            epsilon = torch.cat([epsilon[:, :1], self.policy_noise * drawn], dim=1)
        return Situation(states, guide.plans(states, epsilon))


GUIDED = PlannerConfig(
    samples=128, elites=20, iterations=6, horizon=6, dtype="float16", temperature=0.17, least_sigma=0.05,
    policy_plans=24,
)  # fmt: skip
"""How an agent with a value plans, by default: 912 trajectories."""


class Planner:
    """Plans from model states with its own copy of the weights, fixed while the model learns. No gradients.

    On a CUDA device a plan is one captured graph, and in half precision a model of ordinary size uses fused
    kernels for rollouts. On the CPU the kernels are in C++, if there is a compiler.

    Args:
        model: imagines.
        config: how much to plan.
        decoder: plan in its latent space, instead of over action sequences.
        generator: of the samples, on the model's device.
        value: critics at the end of a plan, and an actor to start it from.
        by_policy: rows (E,) in which the actor acts alone; None for none of them.

    >>> from dcem_lab.suite.rssm import RSSMConfig
    >>> model = RSSM(3, 1, RSSMConfig(hidden=8, width=8))
    >>> plan = Planner(model, PlannerConfig(samples=20, elites=4, iterations=2, horizon=3))
    >>> plan(model.initial(torch.zeros(5, 3))).shape
    torch.Size([5, 1])
    """

    def __init__(
        self,
        model: RSSM,
        config: PlannerConfig,
        decoder: Decoder | None = None,
        generator: Generator | None = None,
        value: Value | None = None,
        by_policy: Tensor | None = None,
    ) -> None:
        dtype = _precision(model, config)
        self._imagination = fast_rollout(model, dtype)
        self._config, self.decoder, self.value = config, decoder, value
        self._held: list[tuple[nn.Module, nn.Module]] = []
        held = self._hold(decoder) if decoder is not None else None
        self._guide, self._judge = None, None
        if value is not None:
            theirs = self._hold(value)
            self._judge = _fused_judge(theirs, model, config.value_pessimism, dtype)
            self._guide = Guide(theirs, self._hold(model), config.value_pessimism, self._judge)
        elif config.policy_plans or isinstance(decoder, ResidualDecoder):
            raise ValueError("Planner: value must be given for plans of a policy, got None")
        if config.iterations:
            self._mpc = config.mpc(model, self._imagination, held, guide=self._guide)
        self._generator = generator
        self._by_policy, self._turn = by_policy, 0
        self._rows = None if by_policy is None else (~by_policy).nonzero().squeeze(-1)  # for a search
        self._plan = capture(self._solve, generator=generator, compile=False)

    def __call__(self, states: Tensor, noise: Tensor | None = None) -> Tensor:
        """Model states (E, S) → the actions (E, m) to take now.

        With noise (T, E, N, n) of the search space's size n it is a deterministic function.
        """
        return self._plan(states) if noise is None else self._plan(states, noise)

    def turn(self, k: int) -> None:
        """From now on the actor acts alone k rows further on than at first; row 0 follows the last."""
        if self._by_policy is not None and self._rows is not None and k != self._turn:
            self._turn = k
            self._rows.copy_((~self._by_policy.roll(k)).nonzero().squeeze(-1))

    def refresh(self) -> None:
        """Copy the weights from model, decoder and value again."""
        self._imagination.refresh()
        for original, held in self._held:
            _copy(original, held)
        if self._judge is not None:
            self._judge.refresh()

    def _hold(self, network: Any) -> Any:
        held = copy.deepcopy(network).requires_grad_(False)
        self._held.append((network, held))
        return held

    @torch.no_grad()
    def _solve(self, states: Tensor, noise: Tensor | None = None) -> Tensor:
        guide, rows = self._guide, self._rows
        if guide is not None and self._config.iterations == 0:
            return guide.act(states)
        if guide is None or rows is None:
            return self._search(states, noise)
        actions = guide.act(states)
        if len(rows) == 0:
            return actions
        planned = self._search(states[rows], None if noise is None else noise[:, rows])
        return actions.index_copy(0, rows, planned)

    def _search(self, states: Tensor, noise: Tensor | None) -> Tensor:
        """The first actions of plans from states."""
        config, guide = self._config, self._guide
        if guide is not None and noise is None:
            shape = config.iterations, len(states), config.samples, self._mpc.search_dim
            noise = torch.empty(shape, device=states.device, dtype=states.dtype)
            noise.normal_(generator=self._generator)
        first = noise[0] if noise is not None else None
        situation = config.situation(states, guide, self.decoder, first)
        return self._mpc(situation, generator=self._generator, noise=noise, cost=False).action


def _precision(model: RSSM, config: PlannerConfig) -> torch.dtype:
    """The dtype of model rollouts on its device."""
    weight, wanted = next(model.parameters()), DTYPES[config.dtype]
    if weight.is_cuda and wanted != torch.float32:
        return wanted
    if wanted == torch.bfloat16 and not model.config.termination and has_kernels(weight, wanted):
        return wanted
    return weight.dtype


def fast_rollout(model: RSSM, dtype: torch.dtype) -> Imagination:
    """The fastest rollout implementation for this model, its device and that precision."""
    if not model.config.termination and has_kernels(next(model.parameters()), dtype):
        return NativeRollout(model, dtype)
    return fused_rollout(model, dtype) or _Copied(model, dtype)


def _fused_judge(
    value: Value, model: RSSM, pessimism: float, dtype: torch.dtype
) -> "judge_triton.FusedJudge | NativeJudge | None":
    """A faster terminal value, if there is one for these critics, precision and device."""
    weight = next(value.parameters())
    if value.bins is not None or model.config.termination:
        return None
    if has_kernels(weight, dtype):
        return NativeJudge(value, pessimism, dtype)
    fused = judge_triton is not None and weight.is_cuda and dtype == torch.float16
    return judge_triton.FusedJudge(value, pessimism) if fused and judge_triton.fits(value) else None


class _Copied(FrozenRollout):
    """Rolls out a copy of a model, in its own precision.

    It does not need the normaliser: states come from the model, in its features.
    """

    def __init__(self, model: RSSM, dtype: torch.dtype) -> None:
        super().__init__(copy.deepcopy(model).requires_grad_(False).to(dtype))
        self.model.reward_scale = model.reward_scale  # shared: it is learned, and keeps its precision
        self._original = model

    def refresh(self) -> None:
        _copy(self._original, self.model)


@torch.no_grad()
def _copy(original: nn.Module, held: nn.Module) -> None:
    torch._foreach_copy_(list(held.parameters()), list(original.parameters()))
