"""The problems every contender is given: the same numbers, built from torch alone in each environment.

A problem has `parameters` (what to differentiate with respect to) and `judge` (how good an answer is).
"""

import torch
from torch import Tensor, nn


class TopK:
    """Rows of standard normal scores x (batch, n): give weight to the k largest of each."""

    def __init__(self, batch: int, n: int, k: int, dtype: torch.dtype = torch.float32):
        self.k = k
        self.x = _normal(batch, n, dtype=dtype).requires_grad_()
        self.parameters = (self.x,)

    def judge(self, y: Tensor, cotangent: Tensor, gradients: tuple[Tensor, ...]) -> dict[str, float]:
        """Errors of the weights' sum (largest, over k) and of the gradient (relative), against float64."""
        exact = self._exact()
        slope = exact * (1 - exact)
        g = cotangent.double()
        exact_gradient = slope * (g - (slope * g).sum(-1, keepdim=True) / slope.sum(-1, keepdim=True))
        return {
            "sum error": ((y.double().sum(-1) - self.k).abs().max() / self.k).item(),
            "gradient error": relative_error(gradients[0], exact_gradient),
        }

    def _exact(self) -> Tensor:
        """Bisection on the dual: slow, and independent of every contender."""
        x = self.x.detach().double()
        low = -x.amax(-1, keepdim=True) - 50
        high = -x.amin(-1, keepdim=True) + 50
        for _ in range(100):
            middle = (low + high) / 2
            too_small = torch.sigmoid(x + middle).sum(-1, keepdim=True) < self.k
            low, high = torch.where(too_small, middle, low), torch.where(too_small, high, middle)
        return torch.sigmoid(x + (low + high) / 2)


class Selection(TopK):
    """The same, for any soft top-k, at the temperature where `ess` samples count: all about as soft."""

    def __init__(self, batch: int, n: int, k: int, ess: float, dtype: torch.dtype = torch.float32):
        super().__init__(batch, n, k, dtype)
        self.ess = ess

    def judge(self, y: Tensor, cotangent: Tensor, gradients: tuple[Tensor, ...]) -> dict[str, float]:
        """The error of the sum (largest, over k), how far weights leave [0, 1], and the effective samples."""
        y = y.double()
        return {
            "sum error": ((y.sum(-1) - self.k).abs().max() / self.k).item(),
            "outside [0, 1]": torch.maximum(-y, y - 1).amax().clamp(min=0).item(),
            "effective samples": (y.sum(-1).square() / y.square().sum(-1)).mean().item(),
        }


class Search:
    """A cost over candidates X (batch, N, n) and the sampling budget to minimise it with."""

    n_samples, n_elite, n_iters, sigma = 100, 10, 10, 1.0
    x0: Tensor  # (batch, n)
    parameters: tuple[Tensor, ...]

    def cost(self, X: Tensor) -> Tensor:
        """(batch, N, n) -> (batch, N)"""
        raise NotImplementedError

    def judge(self, x: Tensor, cotangent: Tensor, gradients: tuple[Tensor, ...]) -> dict[str, float]:
        """The mean cost of the answers x (batch, n)."""
        return {"cost found": self.cost(x.unsqueeze(-2)).mean().item()}


class Quadratic(Search):
    """½‖x − c‖² with a centre c (batch, n) to differentiate with respect to; the least cost is 0."""

    def __init__(self, batch: int, n: int = 20, dtype: torch.dtype = torch.float32):
        self.centre = (0.5 * _normal(batch, n, dtype=dtype)).requires_grad_()
        self.x0 = torch.zeros(batch, n, dtype=dtype)
        self.parameters = (self.centre,)

    def cost(self, X: Tensor) -> Tensor:
        return 0.5 * (X - self.centre.unsqueeze(-2)).square().sum(-1)


class Network(Search):
    """A three-layer network (n → 128 → 128 → 1), fitted for a moment to a bowl so that it has a minimum."""

    def __init__(self, batch: int, n: int = 20, hidden: int = 128, dtype: torch.dtype = torch.float32):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = [nn.Linear(n, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)]
            self.network = nn.Sequential(layers[0], nn.Softplus(), layers[1], nn.Softplus(), layers[2])
            self._fit(0.5 * torch.randn(n))
        self.network.to(dtype)
        self.x0 = torch.zeros(batch, n, dtype=dtype)
        self.parameters = tuple(self.network.parameters())

    def cost(self, X: Tensor) -> Tensor:
        return self.network(X).squeeze(-1)

    def _fit(self, centre: Tensor) -> None:
        adam = torch.optim.Adam(self.network.parameters(), lr=3e-3)
        for _ in range(300):
            x = 1.5 * torch.randn(256, len(centre))
            error = self.network(x).squeeze(-1) - (x - centre).square().mean(-1)
            adam.zero_grad()
            error.square().mean().backward()
            adam.step()


class DoubleIntegrator(Search):
    """A point mass pushed to the origin over 20 steps; the candidates are whole plans (1, N, 20).

    The problem is linear-quadratic: its least cost is 5.0222.
    """

    dt = 0.1

    def __init__(self, horizon: int = 20, dtype: torch.dtype = torch.float32):
        self.start = torch.tensor([1.0, 0.0], dtype=dtype)  # position, velocity
        self.x0 = torch.zeros(1, horizon, dtype=dtype)
        self.parameters = ()

    def dynamics(self, state: Tensor, action: Tensor) -> Tensor:
        """(..., 2), (..., 1) -> (..., 2)"""
        position, velocity = state[..., :1], state[..., 1:]
        return torch.cat(
            [position + self.dt * velocity + 0.5 * self.dt**2 * action, velocity + self.dt * action], -1
        )

    def running_cost(self, state: Tensor, action: Tensor) -> Tensor:
        """(..., 2), (..., 1) -> (...)"""
        return state[..., 0] ** 2 + 0.1 * state[..., 1] ** 2 + 0.01 * action[..., 0] ** 2

    def cost(self, X: Tensor) -> Tensor:
        state = self.start.expand(*X.shape[:-1], 2)
        total = torch.zeros(X.shape[:-1], dtype=X.dtype)
        for action in X.unsqueeze(-1).unbind(-2):
            state = self.dynamics(state, action)
            total = total + self.running_cost(state, action)
        return total


class Embedding:
    """The paper's cartpole from one state: a latent point whose decoded actions swing it up.

    Everyone has their own decoder, z (8) → 256 → 256 → 256 → 20 forces, and their own cartpole. An answer is
    the cost at the solution, whose gradient is that of the decoder's weights: an update but for its step.
    """

    n_samples, n_elite, n_iters, sigma, latent, horizon = 100, 10, 10, 0.5, 8, 20

    def __init__(self) -> None:
        self.state = torch.tensor([[0.1, 0.0, -1.0, 0.0, 0.0]])  # at rest, the pole hangs down


def make(name: str, **settings: object) -> "TopK | Search | Embedding":
    """The problem of that name, from settings that fit into JSON."""
    if "dtype" in settings:
        settings["dtype"] = getattr(torch, str(settings["dtype"]))
    known = (TopK, Selection, Quadratic, Network, DoubleIntegrator, Embedding)
    return {c.__name__: c for c in known}[name](**settings)  # type: ignore[arg-type]


def relative_error(value: Tensor, exact: Tensor) -> float:
    """‖value − exact‖ / ‖exact‖"""
    return ((value.double() - exact.double()).norm() / exact.double().norm()).item()


def _normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)
