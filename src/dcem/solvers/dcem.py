"""The differentiable cross-entropy method (Algorithm 1), and at τ = 0 the cross-entropy method."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from dcem._checks import check_tau, over_rows
from dcem.distributions import Gaussian
from dcem.solvers.effective import temperature_for
from dcem.solvers.elites import ScalingOrDone, scaled, slope_of_elites, soft_elites
from dcem.solvers.refit import refit_by_kernel
from dcem.solvers.sampling import SamplingSolver, SamplingState
from dcem.solvers.schedule import Schedule, at, check_schedule, is_constant, rule
from dcem.topk.standardize import Scaling


@dataclass(frozen=True, kw_only=True, eq=False)
class DCEM(SamplingSolver):
    """Sample N points, refit the distribution to the k best of them by a soft top-k, T times.

    w = lml(-v, k, tau) for the (normalised) values v, then φ by the distribution's estimator. See
    `SamplingSolver` for the settings not listed here.

    Args:
        n_elite: k, how many samples count as elite; may be fractional.
        tau: temperature of the soft top-k, >= 0; the number 0 is vanilla CEM. A tensor (a scalar, or one
            value per row) may require gradients. None: 0.1, or set by ess.
        ess: in place of tau, the effective sample size (Σw)² / Σw², between n_elite and n_samples. The
            temperature is then chosen to give every update this effective sample size, row by row.

    All may be schedules: a function of the iteration t = 0, ..., T-1, or a sequence of T values.

    The defaults are for searching. To train through the search, take `DCEM(tau=1.0, normalize=True)`. The
    paper's algorithm is `DCEM(tau=1.0, normalize=True, distribution=Gaussian(estimator="likelihood"))`.

    A temperature too low for a derivative that is more than noise has the first and second derivatives of a
    warmer one; see `dcem.solvers.elites.soft_elites`. Otherwise both are exact.

    >>> solver = DCEM(n_samples=200, n_elite=20, n_iters=10, tau=lambda t: 0.8**t)
    """

    n_elite: Schedule = 10
    tau: Schedule | None = None
    ess: Schedule | None = None
    normalize: Scaling = "half"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau is not None and self.ess is not None:
            raise ValueError(f"DCEM: tau must be left out where ess is given, got tau={self.tau}")
        for name in ("n_elite", "tau", "ess"):
            if getattr(self, name) is not None:
                check_schedule(f"DCEM: {name}", getattr(self, name), self.n_iters, self._rule(name))

    def _rule(self, name: str) -> Callable[[float | Tensor], None]:
        """The check of a setting's values."""
        if name == "tau":
            return partial(check_tau, "DCEM")
        n_samples = self.n_samples
        if name == "n_elite":
            words = f"satisfy 0 < n_elite <= n_samples = {n_samples}"
            return rule("DCEM: n_elite", words, lambda x: (x > 0) & (x <= n_samples))
        k = self.n_elite
        least, low = (k, f"n_elite = {k}") if isinstance(k, int | float) else (1, "n_elite")
        words = f"lie between {low} and n_samples = {n_samples}"
        return rule("DCEM: ess", words, lambda x: (x > least) & (x < n_samples))

    @property
    def stationary(self) -> bool:
        return type(self) is DCEM and is_constant(self)

    def refit(self, state: SamplingState, u: Tensor, values: Tensor, t: int) -> tuple[SamplingState, Tensor]:
        if type(self) is DCEM and type(self._paced) is Gaussian and self.ess is None:
            found = refit_by_kernel(self._paced, state.phi, u, self._at(t, values), self.sigma_min)
            if found is not None:
                return state._replace(phi=self._damped(found[0], state.phi, t)), found[1]
        return super().refit(state, u, values, t)

    def weights(self, values: Tensor, t: int) -> Tensor:
        return soft_elites(*self._at(t, values))

    def slope(self, values: Tensor, t: int) -> Tensor:
        return slope_of_elites(*self._at(t, values))

    def softness(self, t: int) -> float | Tensor:
        return at(0.1 if self.tau is None else self.tau, t)

    def _at(self, t: int, values: Tensor) -> tuple[Tensor, float | Tensor, float | Tensor, ScalingOrDone]:
        """Values, k and τ of iteration t, shaped to broadcast against each other, and how to scale values."""
        k = self._setting("n_elite", self.n_elite, t, values)
        if self.ess is None:
            tau = self._setting("tau", 0.1 if self.tau is None else self.tau, t, values)
            return values, k, tau, self.normalize
        v = scaled(values, self.normalize or True)  # any scale works: the temperature adapts to it
        return v, k, temperature_for(v, k, self._setting("ess", self.ess, t, values)), "done"

    def _setting(self, name: str, schedule: Schedule, t: int, values: Tensor) -> float | Tensor:
        value = at(schedule, t)
        if callable(schedule):
            self._rule(name)(value)
        return over_rows(value, f"DCEM: {name}", values)
