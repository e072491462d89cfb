"""The planner of an agent: the (differentiable) cross-entropy method, over what a world model imagines."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from dcem import DCEM, MPC, Decoder, Gaussian, capture
from dcem.backward import Backward, Unroll
from dcem_lab.runs import require
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout, fused_rollout

_UNROLL = Unroll()
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class PlannerConfig(Settings):
    """How much to plan. The defaults are the paper's, over full action sequences.

    Attributes:
        samples: N, candidates an iteration.
        elites: k, those the next iteration starts from.
        iterations: T.
        horizon: H, steps to look ahead.
        sigma: the first standard deviation, around zero, of every action or latent coordinate.
        tau: temperature of the soft top-k; 0 for the hard one.
        dtype: what the model imagines in on a CUDA device: float32, float16 or bfloat16. The search itself,
            and the processor, stay with float32.
    """

    samples: int = setting(1000, least=1)
    elites: int = setting(100, least=1)
    iterations: int = setting(10, least=1)
    horizon: int = setting(12, least=1)
    sigma: float = setting(1.0, above=0)
    tau: float = setting(0.0, least=0)
    dtype: str = setting("float32", among=tuple(DTYPES))

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.elites <= self.samples, "elites", self.elites, f"from 1 to samples={self.samples}")

    def mpc(
        self, model: RSSM, imagination: Any, decoder: Decoder | None = None, backward: Backward = _UNROLL
    ) -> MPC:
        """The search over what the model, or another way to imagine the same, says about actions."""
        mpc = MPC(
            imagination,
            self.horizon,
            solver=self.solver(),
            decoder=decoder,
            action_dim=model.action_dim,
            backward=backward,
        )
        return mpc.to(next(model.parameters()).device)

    def solver(self) -> DCEM:
        """The search."""
        return DCEM(
            n_samples=self.samples,
            n_elite=self.elites,
            n_iters=self.iterations,
            tau=self.tau,
            distribution=Gaussian(sigma=self.sigma),
        )


class Planner:
    """Plans from model states, with weights of its own, which stay put while the model learns. No gradients.

    On a CUDA device a plan is one captured graph, and in half precision a model of ordinary size imagines
    in fused kernels.

    Args:
        model: imagines.
        config: how much to plan.
        decoder: plan in its latent space, instead of over action sequences.
        generator: of the samples, on the model's device.

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
    ) -> None:
        weight = next(model.parameters())
        half = weight.is_cuda and config.dtype != "float32"
        dtype = DTYPES[config.dtype] if half else weight.dtype
        self._imagination = fused_rollout(model, dtype) or _Imagination(model, dtype)
        self.decoder = decoder
        held = copy.deepcopy(decoder).requires_grad_(False) if decoder is not None else None
        self._mpc = config.mpc(model, self._imagination, held)
        self._generator = generator
        self._plan = capture(self._solve, generator=generator, compile=False)

    def __call__(self, states: Tensor, noise: Tensor | None = None) -> Tensor:
        """Model states (E, S) → the actions (E, m) to take now.

        With noise (T, E, N, n) of the search space's size n it is a deterministic function.
        """
        return self._plan(states) if noise is None else self._plan(states, noise)

    def refresh(self) -> None:
        """Take the weights anew from model and decoder."""
        self._imagination.refresh()
        if self.decoder is not None and self._mpc.decoder is not None:
            _copy(self.decoder, self._mpc.decoder)

    @torch.no_grad()
    def _solve(self, states: Tensor, noise: Tensor | None = None) -> Tensor:
        return self._mpc(states, generator=self._generator, noise=noise, cost=False).action


class _Imagination(FrozenRollout):
    """A copy of a model that imagines in its own precision, under a search that adds up costs in another.

    It has no use for the normaliser: states come from the model, in its features.
    """

    def __init__(self, model: RSSM, dtype: torch.dtype) -> None:
        super().__init__(copy.deepcopy(model).requires_grad_(False).to(dtype))
        self._original, self._dtype = model, dtype

    def refresh(self) -> None:
        """Take the weights anew from the model."""
        _copy(self._original, self.model)

    def sequence_cost(
        self, state: Tensor, actions: Tensor, discount: float = 1.0, terminal_cost: None = None
    ) -> Tensor:
        state, planned = state.to(self._dtype), actions.to(self._dtype)
        return super().sequence_cost(state, planned, discount, terminal_cost).to(actions.dtype)


@torch.no_grad()
def _copy(original: nn.Module, held: nn.Module) -> None:
    torch._foreach_copy_(list(held.parameters()), list(original.parameters()))
