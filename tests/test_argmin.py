"""The argmin layer, on energies whose minimum and its derivatives are known."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dcem.argmin import Argmin
from dcem.backward import Detach
from dcem.distributions import Gaussian
from dcem.solvers import DCEM, MPPI, GradientDescent

SOLVERS = [
    DCEM(n_samples=400, n_elite=20, n_iters=10, tau=0.3, distribution=Gaussian(sigma=2.0)),
    MPPI(n_samples=400, n_iters=8, temperature=0.1, adapt_sigma=True, distribution=Gaussian(sigma=2.0)),
    GradientDescent(n_iters=60, learning_rate=0.1),
]


class Bowl(nn.Module):
    """E(y | x) = |y - A x|², whose argmin is A x."""

    def __init__(self, m: int, n: int) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.randn(n, m))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y - x @ self.A.T).square().sum(-1)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_finds_the_argmin(solver, batch):
    energy = Bowl(4, 3)
    layer = Argmin(energy, solver, n=3)
    x = torch.randn(*batch, 4)
    answer = layer(x)
    assert answer.shape == (*batch, 3)
    torch.testing.assert_close(answer, x @ energy.A.T, atol=0.01, rtol=0)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_its_derivative_in_the_parameters_is_that_of_the_argmin(solver):
    energy = Bowl(4, 3)
    x, g = torch.randn(2, 4), torch.randn(2, 3)
    (gradient,) = torch.autograd.grad(Argmin(energy, solver, n=3)(x), energy.A, g)
    torch.testing.assert_close(gradient, g.T @ x, atol=0.01, rtol=0)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "solver", [DCEM(n_samples=12, n_elite=4, n_iters=3, tau=1.0), GradientDescent(n_iters=3)]
)
def test_gradients_are_those_of_finite_differences(solver):
    noise = torch.randn(3, 2, 12, 1) if isinstance(solver, DCEM) else None

    def answer(x, a, y0):
        layer = Argmin(lambda x, y: ((y - a * x.sin()).square() + (a * y).cos()).sum(-1), solver, n=1)
        return layer.solve(x, y0, noise=noise).x

    inputs = (torch.randn(2, 1), torch.tensor(1.3), torch.randn(2, 1))
    assert torch.autograd.gradcheck(answer, [value.requires_grad_() for value in inputs])


@pytest.mark.usefixtures("double")
def test_a_batch_is_its_rows():
    energy = Bowl(2, 3)
    layer = Argmin(energy, DCEM(n_samples=20, n_elite=5, n_iters=4), n=3)
    x, noise = torch.randn(2, 5, 2), torch.randn(4, 2, 5, 20, 3)
    together = layer.solve(x, noise=noise).x
    for i in range(2):
        for j in range(5):
            alone = layer.solve(x[i, j], noise=noise[:, i, j]).x
            torch.testing.assert_close(together[i, j], alone)


def test_other_iterations_at_test_time():
    solver = GradientDescent(n_iters=2)
    layer = Argmin(Bowl(2, 2), solver, n=2)
    x = torch.randn(3, 2)
    longer = Argmin(layer.energy, replace(solver, n_iters=7), n=2)
    solution = layer.solve(x, n_iters=7, trace=True)
    torch.testing.assert_close(solution.x, longer(x))
    torch.testing.assert_close(solution.trace[1].mean, layer(x))
    assert layer.solver == solver


def test_starts_where_it_is_told():
    layer = Argmin(Bowl(2, 2), GradientDescent(n_iters=1, learning_rate=1e-9), n=2)
    y0 = torch.randn(3, 2)
    torch.testing.assert_close(layer(torch.randn(3, 2), y0), y0)
    torch.testing.assert_close(layer(torch.randn(3, 2)), torch.zeros(3, 2))


def test_the_generator_is_the_only_source_of_randomness():
    layer = Argmin(Bowl(2, 2), DCEM(n_iters=2), n=2)
    x = torch.randn(3, 2)
    first, again, other = (layer(x, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_is_a_module():
    energy = Bowl(2, 3)
    layer = Argmin(energy, DCEM(), n=3)
    assert [name for name, _ in layer.named_parameters()] == ["energy.A"]
    assert "n=3" in repr(layer)
    assert layer.double()(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64


def test_trains_the_energy():
    target = torch.randn(3, 2)
    layer = Argmin(Bowl(2, 3), replace(SOLVERS[0], n_samples=100, n_elite=10), n=3)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.2)
    x = torch.randn(8, 2)
    losses = []
    for _ in range(30):
        loss = (layer(x) - x @ target.T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_backward_is_passed_on():
    layer = Argmin(Bowl(2, 3), DCEM(), n=3, backward=Detach())
    assert not layer(torch.randn(2)).requires_grad


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Argmin(3, DCEM(), 1), "energy must be callable, got int"),
        (lambda: Argmin(Bowl(2, 2), DCEM(), 0), "n must be a positive integer .*, got 0"),
        (
            lambda: Argmin(Bowl(2, 2), DCEM(), 2)(torch.zeros(3, 2).long()),
            r"\(\*B, m\), .*, got torch.int64 of",
        ),
        (lambda: Argmin(Bowl(2, 2), DCEM(), 2)([0.0]), "x must be a floating-point tensor .*, got list"),
        (
            lambda: Argmin(Bowl(2, 2), DCEM(), 2)(torch.zeros(3, 2), torch.zeros(3, 1)),
            r"y0 must have shape \(3, 2\), got \(3, 1\)",
        ),
    ],
)
def test_says_what_is_wrong(make, message):
    with pytest.raises((TypeError, ValueError), match=f"Argmin: .*{message}"):
        make()


def test_evaluation_can_be_deterministic_alone_or_in_a_batch():
    layer = Argmin(lambda x, y: (y - x.square()).square().sum(-1), DCEM(), n=2, seed=3)
    x = torch.randn(6, 2)
    assert not torch.equal(layer(x), layer(x))  # training draws new noise
    layer.eval()
    whole = layer(x)
    assert torch.equal(whole, layer(x))
    assert torch.allclose(whole, torch.stack([layer(row) for row in x]), atol=1e-6)
    layer.seed = None
    assert not torch.equal(layer(x), layer(x))


def test_images_are_inputs():
    seen = []

    def energy(image, y):
        seen.append(image.shape)
        return (y - image.mean((-1, -2))).square().sum(-1)

    layer = Argmin(energy, DCEM(n_iters=20), n=3, input_dims=3)
    images = torch.randn(4, 3, 8, 8)
    assert torch.allclose(layer(images), images.mean((-1, -2)), atol=0.05)
    assert seen[0] == (4, 1, 3, 8, 8)
    assert layer(images[0]).shape == (3,)


def test_inputs_may_be_nested_and_answers_shaped():
    def energy(x, y):  # y: (B, N, 2, 2)
        return (y - x["scale"].unsqueeze(-1) * x["matrix"]).square().sum((-1, -2))

    x = {"matrix": torch.randn(5, 2, 2), "scale": torch.rand(5, 1)}
    y = Argmin(energy, DCEM(n_iters=30), n=(2, 2))(x)
    assert torch.allclose(y, x["scale"].unsqueeze(-1) * x["matrix"], atol=0.1)


def test_half_precision_inputs_are_searched_in_single_precision():
    def energy(x, y):
        assert x.dtype == y.dtype == torch.bfloat16
        return (y - x).square().sum(-1)

    x = torch.tensor([[0.3, -0.2]], dtype=torch.bfloat16)
    layer = Argmin(energy, DCEM(n_iters=20), n=2)
    sol = layer.solve(x)
    assert sol.state.phi.mean.dtype == torch.float32 and sol.x.dtype == torch.bfloat16
    assert torch.allclose(sol.x, x, atol=0.05)


@pytest.mark.parametrize(
    "x", [torch.zeros(2, dtype=torch.long), "text", {"a": torch.zeros(2), "b": torch.zeros(3)}]
)
def test_inputs_that_do_not_fit_are_named(x):
    with pytest.raises(ValueError, match=r"Argmin: (x|tensors of x) must"):
        Argmin(lambda x, y: y.sum(-1), DCEM(), n=1)(x)
