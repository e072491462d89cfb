"""Discrete and mixed spaces: switches, choices, and products of distributions."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import dcem
from dcem import DCEM, MPPI, Bernoulli, Categorical, Gaussian, Product, minimize
from dcem.backward import Checkpoint, Detach, Implicit, Prune, Truncate, Unroll
from dcem.noise import Antithetic, Sobol

pytestmark = pytest.mark.usefixtures("double")
MIXED = Product([(Categorical(3), 6), (Bernoulli(), 2), (Gaussian(), 2)])
FAMILIES = {"categorical": (Categorical(3), 6), "bernoulli": (Bernoulli(), 5), "mixed": (MIXED, 10)}
SOLVERS = {
    "soft": lambda d: DCEM(n_samples=40, n_elite=8, n_iters=4, distribution=d, smoothing=0.3),
    "hard": lambda d: DCEM(n_samples=40, n_elite=8, n_iters=4, distribution=d, tau=0),
    "best": lambda d: DCEM(n_samples=40, n_elite=8, n_iters=4, distribution=d, returns="best"),
    "elites": lambda d: DCEM(n_samples=40, n_elite=8, n_iters=4, distribution=d, keep_elites=3),
    "stopping": lambda d: DCEM(n_samples=40, n_elite=8, n_iters=12, distribution=d, stop_below=0.2),
    "mppi": lambda d: MPPI(n_samples=40, n_iters=4, distribution=d),
    "mppi, adapting": lambda d: MPPI(n_samples=40, n_iters=4, distribution=d, adapt_sigma=True),
}


def problem(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(n, n, generator=g)
    return torch.randn(n, generator=g), a @ a.T / n


def quadratic(x: Tensor, linear: Tensor, square: Tensor) -> Tensor:
    """Choices that depend on each other."""
    return (x @ linear) + ((x @ square) * x).sum(-1)


def noise_of(n_iters: int, *shape: int) -> Tensor:
    return torch.randn(n_iters, *shape, generator=torch.Generator().manual_seed(1))


# --------------------------------------------------------------------------- samples


def test_choices_come_as_often_as_they_are_likely():
    p = torch.tensor([[0.7, 0.2, 0.1, 0.05, 0.05, 0.9], [0.0, 0.5, 0.5, 1.0, 0.0, 0.0]])
    phi = type(Categorical(3).init(p))(p)
    u = Categorical(3).sample(phi, torch.randn(2, 50_000, 6))
    assert torch.equal(u.unflatten(-1, (2, 3)).sum(-1), torch.ones(2, 50_000, 2))
    assert ((u == 0) | (u == 1)).all()
    assert torch.allclose(u.mean(-2), p, atol=0.01)
    assert (u[1, :, 0] == 0).all() and (u[1, :, 3] == 1).all(), "what cannot be is never drawn"


def test_switches_are_on_as_often_as_they_are_likely():
    p = torch.tensor([0.0, 0.1, 0.5, 0.99, 1.0])
    u = Bernoulli().sample(type(Bernoulli().init(p))(p), torch.randn(50_000, 5))
    assert ((u == 0) | (u == 1)).all() and torch.allclose(u.mean(0), p, atol=0.01)


@pytest.mark.parametrize("kind", [Antithetic(), Sobol()], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_noise_will_do(family, kind):
    distribution, n = FAMILIES[family]
    drawn = kind.draw((3, 4096, n), torch.zeros(1), None)
    phi = distribution.init(torch.zeros(3, n))
    assert torch.allclose(distribution.sample(phi, drawn).mean(-2), phi.mean, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_samples_have_the_dtype_of_x0(dtype):
    for distribution, n in FAMILIES.values():
        phi = distribution.init(torch.zeros(n, dtype=dtype))
        assert distribution.sample(phi, torch.randn(7, n, dtype=dtype)).dtype == dtype


# --------------------------------------------------------------------------- the first odds, and the fit


def test_zeros_are_even_odds_among_choices():
    assert torch.allclose(Categorical(4).init(torch.zeros(2, 8)).mean, torch.full((2, 8), 0.25))


def test_the_first_odds_are_a_mixture_with_even_ones():
    x0 = torch.tensor([1.0, 0.0, 0.0])
    assert torch.allclose(Categorical(3, spread=0.3).init(x0).mean, torch.tensor([0.8, 0.1, 0.1]))
    assert torch.allclose(Bernoulli(spread=0.3).init(x0).mean, torch.tensor([0.85, 0.15, 0.15]))


def test_the_fit_is_the_weighted_frequency():
    u = torch.eye(3)[torch.tensor([0, 0, 1, 2, 1])]
    w = torch.tensor([1.0, 2.0, 3.0, 0.0, 4.0])
    phi = Categorical(3, floor=0.0).fit(None, u, w, 0.0)
    assert torch.allclose(phi.mean, torch.tensor([0.3, 0.7, 0.0]))
    assert torch.allclose(phi.sigma, (phi.mean * (1 - phi.mean)).sqrt())


@pytest.mark.parametrize(("distribution", "n"), [(Categorical(4), 8), (Bernoulli(), 5)], ids=str)
@pytest.mark.parametrize("sigma_min", [0.0, 0.3, 2.0])
def test_no_choice_dies_out(distribution, n, sigma_min):
    one = distribution.mode(torch.rand(n))
    phi = distribution.fit(None, one.expand(9, n), torch.ones(9), sigma_min)
    assert (phi.mean >= distribution.floor * distribution.even - 1e-12).all()
    most = (distribution.even * (1 - distribution.even)) ** 0.5
    assert (phi.sigma >= min(sigma_min, most) - 1e-12).all()
    if isinstance(distribution, Categorical):
        assert torch.allclose(phi.mean.unflatten(-1, (-1, 4)).sum(-1), torch.ones(2))


@pytest.mark.parametrize("family", FAMILIES)
def test_widening_makes_the_odds_more_even(family):
    distribution, n = FAMILIES[family]
    phi = distribution.init(torch.rand(2, n))
    assert torch.allclose(distribution.widen(phi, 1.0).mean, phi.mean)
    wide = distribution.widen(phi, torch.tensor([1.0, 3.0]))
    assert torch.allclose(wide.sigma[0], phi.sigma[0]) and (wide.sigma[1].sum() > phi.sigma[1].sum())
    if family == "categorical":
        expected = phi.mean[1, :3] ** (1 / 3)
        assert torch.allclose(wide.mean[1, :3], expected / expected.sum())


def test_proposals_are_the_nearest_points_of_the_space():
    proposal = torch.tensor([[0.1, 0.8, 0.3, 0.2, 0.9]])
    distribution = Product([(Categorical(3), 3), (Bernoulli(), 1), (Gaussian(bounds=(-1.0, 0.5)), 1)])
    solver = DCEM(distribution=distribution, n_iters=1, returns="best", n_samples=3, n_elite=2)
    target = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.5])
    x0 = torch.tensor([0.9, 0.0, 0.0, 0.9, 0.0])
    sol = minimize(lambda x: (x - target).abs().sum(-1), solver, x0, proposals=proposal)
    assert torch.equal(sol.x, target)


# --------------------------------------------------------------------------- answers


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_all_combinations_is_found(seed):
    """Against trying each of them."""
    linear, square = problem(12, seed)
    grid = [
        torch.cat([torch.eye(3)[list(choice)].flatten(), torch.tensor(switches)])
        for choice in itertools.product(range(3), repeat=3)
        for switches in itertools.product((0.0, 1.0), repeat=3)
    ]
    best = quadratic(torch.stack(grid), linear, square).min()
    distribution = Product([(Categorical(3), 9), (Bernoulli(), 3)])
    for solver in (
        DCEM(distribution=distribution, tau=0.1),
        MPPI(distribution=distribution, temperature=0.3),
    ):
        sol = minimize(lambda x: quadratic(x, linear, square), solver, torch.full((12,), 0.5))
        assert any(torch.equal(sol.x, point) for point in grid)
        assert sol.cost <= best + 0.2 * best.abs()
    best_of = DCEM(distribution=distribution, returns="best", n_samples=400)
    sol = minimize(lambda x: quadratic(x, linear, square), best_of, torch.full((12,), 0.5))
    assert torch.isclose(sol.cost, best)


def test_three_choices_and_five_numbers_are_one_search():
    centres = torch.randn(3, 5)
    price = torch.tensor([5.0, 0.0, 5.0])
    f = lambda x: (x["u"] - x["gear"] @ centres).square().sum(-1) + x["gear"] @ price  # noqa: E731
    solver = DCEM(distribution=Product([(Categorical(3), 3), (Gaussian(sigma=2.0), 5)]), n_iters=40)
    sol = minimize(f, solver, {"gear": torch.zeros(4, 3), "u": torch.zeros(4, 5)})
    assert torch.equal(sol.x["gear"], torch.eye(3)[1].expand(4, 3))
    assert torch.allclose(sol.x["u"], centres[1].expand(4, 5), atol=1e-2)


@pytest.mark.parametrize("returns", ["mean", "best"])
def test_the_answer_is_discrete_and_the_state_holds_the_odds(returns):
    solver = DCEM(distribution=Categorical(3), returns=returns, n_iters=3)
    sol = minimize(lambda x: x @ torch.arange(6.0), solver, torch.zeros(2, 6), trace=True)
    assert ((sol.x == 0) | (sol.x == 1)).all()
    odds = sol.state.phi.mean
    assert torch.equal(odds, sol.trace[-1].mean) and (odds < 1).all() and (odds > 0).all()
    if returns == "mean":
        assert torch.equal(sol.x.unflatten(-1, (2, 3)).argmax(-1), odds.unflatten(-1, (2, 3)).argmax(-1))


# --------------------------------------------------------------------------- the laws of the core


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch", [(3,), (2, 2)], ids=str)
def test_a_batch_equals_a_loop(name, family, batch):
    distribution, n = FAMILIES[family]
    solver = SOLVERS[name](distribution)
    x0, problems = torch.rand(*batch, n), [problem(n, seed) for seed in range(4)]
    linear = torch.stack([p[0] for p in problems[: x0[..., 0].numel()]]).reshape(*batch, 1, n)
    square = problems[0][1]
    f = lambda x, linear: (x * linear).sum(-1) + ((x @ square) * x).sum(-1)  # noqa: E731
    noise = noise_of(solver.n_iters, *batch, 40, n)
    together = minimize(lambda x: f(x, linear), solver, x0, noise=noise)
    for row in itertools.product(*map(range, batch)):
        alone = minimize(lambda x, row=row: f(x, linear[row]), solver, x0[row], noise=noise[:, *row])
        assert torch.allclose(together.x[row], alone.x, atol=1e-9)
        assert torch.allclose(together.state.phi.mean[row], alone.state.phi.mean, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_temperature_of_almost_zero_is_the_hard_method(family):
    distribution, n = FAMILIES[family]
    linear, square = problem(n)
    noise = noise_of(5, 2, 50, n)
    f = lambda x: quadratic(x, linear, square)  # noqa: E731
    settings = {"n_samples": 50, "n_elite": 10, "n_iters": 5, "distribution": distribution}
    x = [minimize(f, DCEM(tau=tau, **settings), torch.full((2, n), 0.5), noise=noise) for tau in (0, 1e-8)]
    assert torch.allclose(x[0].state.phi.mean, x[1].state.phi.mean, atol=1e-6)


@pytest.mark.parametrize("name", ["soft", "mppi", "mppi, adapting", "elites"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", [Unroll(), Checkpoint(), Truncate(4), Prune(1.0)], ids=str)
def test_derivatives_of_the_odds(name, family, mode):
    """Exact with fixed noise: with respect to the objective, the first odds and the spread."""
    distribution, n = FAMILIES[family]
    _, square = problem(n)
    noise = noise_of(4, 40, n)

    def solve(linear, x0, spread):
        chosen = Categorical(3, spread=spread) if family == "categorical" else distribution
        solver = SOLVERS[name](chosen)
        sol = minimize(lambda x: quadratic(x, linear, square), solver, x0, noise=noise, backward=mode)
        return sol.state.phi.mean

    inputs = (problem(n)[0], torch.rand(n), torch.tensor(0.4))
    inputs = [v.requires_grad_() for v in inputs]
    assert gradcheck(solve, inputs)


def test_second_derivatives_of_the_odds():
    _, square = problem(10)
    noise = noise_of(2, 12, 10)

    def solve(linear, tau, smoothing):
        solver = DCEM(n_samples=12, n_elite=3, n_iters=2, tau=tau, smoothing=smoothing, distribution=MIXED)
        sol = minimize(lambda x: quadratic(x, linear, square), solver, torch.full((10,), 0.5), noise=noise)
        return sol.state.phi.mean

    inputs = [v.requires_grad_() for v in (problem(10)[0], torch.tensor(0.8), torch.tensor(0.3))]
    assert gradcheck(solve, inputs) and gradgradcheck(solve, inputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_the_answer_is_that_of_the_odds(family):
    distribution, n = FAMILIES[family]
    linear, square = problem(n)
    linear.requires_grad_()
    sol = minimize(
        lambda x: quadratic(x, linear, square),
        DCEM(n_iters=1, tau=1.0, distribution=distribution),
        torch.full((n,), 0.5),
    )
    weight = torch.randn(n)
    found, expected = (
        torch.autograd.grad((x * weight).sum(), linear, retain_graph=True)[0]
        for x in (sol.x, sol.state.phi.mean)
    )
    assert torch.allclose(found, expected) and found.abs().max() > 1e-3


def test_descending_on_the_odds_teaches_a_choice():
    """Prices are learned such that the cheapest is the one that a teacher took."""
    price = (0.1 * torch.randn(2, 4)).requires_grad_()
    teacher = torch.eye(4)[torch.tensor([2, 0])].flatten()
    optimizer = torch.optim.Adam([price], lr=0.1)
    solver = DCEM(n_iters=3, tau=1.0, distribution=Categorical(4))
    for _ in range(60):
        sol = minimize(lambda x: x @ price.flatten(), solver, torch.zeros(8))
        loss = -(sol.state.phi.mean.log() * teacher).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.equal(minimize(lambda x: x @ price.flatten(), solver, torch.zeros(8)).x.detach(), teacher)


@pytest.mark.parametrize("mode", [Checkpoint(), Truncate(1), Prune(0.2), Implicit(), Detach()], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_mode_changes_the_answer(mode, family):
    distribution, n = FAMILIES[family]
    linear, square = problem(n)
    linear.requires_grad_()
    f = lambda x: quadratic(x, linear, square)  # noqa: E731
    noise = noise_of(4, 3, 40, n)
    x0 = torch.full((3, n), 0.5)
    plain, other = (
        minimize(f, SOLVERS["soft"](distribution), x0, noise=noise, backward=m) for m in (Unroll(), mode)
    )
    assert torch.equal(plain.x, other.x) and torch.equal(plain.cost, other.cost)


def test_implicit_derivatives_are_those_of_the_numbers_with_the_choices_held():
    """min over u of |u - centre of the choice|² + u · θ is u = centre - θ / 2; the second choice is best."""
    centres, theta = torch.randn(3, 2), (0.1 * torch.randn(2)).requires_grad_()
    price = torch.tensor([9.0, 0.0, 9.0])

    def f(x):
        choice, u = x[..., :3], x[..., 3:]
        return (u - choice @ centres).square().sum(-1) + u @ theta + choice @ price

    solver = DCEM(distribution=Product([(Categorical(3), 3), (Gaussian(sigma=3.0), 2)]), n_iters=40)
    x = minimize(f, solver, torch.zeros(5), backward=Implicit()).x
    assert torch.equal(x[:3].detach(), torch.eye(3)[1])
    assert torch.allclose(x[3:], centres[1] - theta / 2, atol=1e-3)
    jacobian = torch.stack([torch.autograd.grad(part, theta, retain_graph=True)[0] for part in x])
    assert torch.allclose(jacobian, torch.cat([torch.zeros(3, 2), -torch.eye(2) / 2]), atol=1e-6)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solve_goes_on_from_its_state(name):
    linear, square = problem(10)
    f = lambda x: quadratic(x, linear, square)  # noqa: E731
    solver = SOLVERS[name](MIXED)
    first = minimize(f, solver, torch.full((3, 10), 0.5))
    assert minimize(f, solver, first.state).x.shape == (3, 10)
    with pytest.raises(ValueError, match="must be a state of Gaussian"):
        minimize(f, SOLVERS[name](Gaussian()), first.state)


# --------------------------------------------------------------------------- products


def test_a_product_of_gaussians_is_one_gaussian():
    noise = noise_of(4, 2, 40, 5)
    linear, square = problem(5)
    f = lambda x: quadratic(x, linear, square)  # noqa: E731
    settings = {"n_samples": 40, "n_iters": 4, "smoothing": 0.2, "sigma_min": 0.1}
    parts = [(Gaussian(sigma=0.7, bounds=(-1.0, 1.0)), 2), (Gaussian(sigma=0.7, bounds=(-1.0, 1.0)), 3)]
    whole = Gaussian(sigma=0.7, bounds=(-1.0, 1.0))
    for family in (DCEM, MPPI):
        one, other = (
            minimize(f, family(distribution=d, **settings), torch.zeros(2, 5), noise=noise)
            for d in (whole, Product(parts))
        )
        assert torch.allclose(one.x, other.x, atol=1e-12)
        assert torch.allclose(one.state.phi.sigma, other.state.phi.sigma, atol=1e-12)


def test_every_part_keeps_its_own_bounds_and_coordinates():
    parts = [
        (Gaussian(bounds=(0.0, 1.0), boundary="squash"), 1),
        (Gaussian(), 1),
        (Gaussian(bounds=(-2.0, -1.0)), 1),
    ]
    product = Product(parts)
    sol = minimize(
        lambda x: (x - 3).square().sum(-1),
        DCEM(distribution=product, n_iters=60),
        torch.tensor([0.5, 0.0, -1.5]),
        trace=True,
    )
    assert product.box.contains(sol.x) and all(product.box.contains(r.samples).all() for r in sol.trace)
    assert torch.allclose(sol.x, torch.tensor([1.0, 3.0, -1.0]), atol=0.05)
    with pytest.raises(ValueError, match="x0 must lie within the bounds"):
        minimize(lambda x: x.sum(-1), DCEM(distribution=product), torch.tensor([0.5, 0.0, -3.0]))
    assert Product([(Gaussian(), 1)]).box is None


def test_parts_repeat_at_every_step():
    product = Product([(Categorical(2), 2), (Gaussian(sigma=1.0), 1)], steps=3)
    u = product.sample(product.init(torch.zeros(4, 9)), torch.randn(4, 50, 9)).unflatten(-1, (3, 3))
    assert torch.equal(u[..., :2].sum(-1), torch.ones(4, 50, 3))
    assert u[..., 2].std() > 0.9 and ((u[..., 2] != 0) & (u[..., 2] != 1)).all()


def test_learned_settings_of_a_part_are_parameters_of_the_layer():
    sigma, spread = dcem.Positive(0.7), torch.nn.Parameter(torch.tensor(0.5))
    product = Product([(Categorical(2, spread=spread), 2), (Gaussian(sigma=sigma), 2)])
    energy = lambda x, y: (y - x).square().sum(-1)  # noqa: E731
    layer = dcem.Argmin(energy, DCEM(distribution=product, smoothing=0.5, n_iters=2), n=4)
    assert len(list(layer.parameters())) == 2
    layer.solve(torch.rand(3, 4), torch.rand(3, 4)).state.phi.mean.square().sum().backward()
    assert sigma.raw.grad.abs() > 0 and spread.grad.abs() > 0


# --------------------------------------------------------------------------- control


class Gears:
    """A cart that is pushed back, left alone or pushed on: a force of -1, 0 or 1."""

    action_dim = 3

    def step(self, state, action):
        force = action @ torch.tensor([-1.0, 0.0, 1.0])
        position, speed = state.unbind(-1)
        position, speed = position + 0.2 * speed, speed + 0.2 * force
        return torch.stack([position, speed], -1), position.square() + 0.1 * speed.square()


class Mixed(Gears):
    """The same, with a trim that is a number."""

    action_dim = 4

    def step(self, state, action):
        state, cost = super().step(state, action[..., :3])
        return state + 0.1 * action[..., 3:], cost


@pytest.mark.parametrize("bounds", [{}, {"low": 0.0, "high": 1.0}], ids=["any box", "unit box"])
def test_discrete_actions(bounds):
    mpc = dcem.MPC(Gears(), horizon=10, solver=DCEM(distribution=Categorical(3), tau=0.1), **bounds)
    plan = mpc(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert (
        torch.equal(plan.actions.sum(-1), torch.ones(2, 10))
        and ((plan.actions == 0) | (plan.actions == 1)).all()
    )
    assert torch.equal(plan.action, torch.eye(3)[torch.tensor([0, 2])])
    path = dcem.control.closed_loop(mpc, torch.tensor([1.0, 0.0]), steps=30)
    assert path.states[-1].abs().max() < 0.3


def test_mixed_actions():
    solver = DCEM(distribution=Product([(Categorical(3), 3), (Gaussian(), 1)]), tau=0.1, n_iters=20)
    low, high = torch.tensor([0.0, 0.0, 0.0, -0.5]), torch.tensor([1.0, 1.0, 1.0, 0.5])
    mpc = dcem.MPC(Mixed(), horizon=6, low=low, high=high, solver=solver)
    plan = mpc(torch.tensor([2.0, 0.0]))
    assert torch.equal(plan.actions[:, :3].sum(-1), torch.ones(6))
    assert (plan.actions[:, 3].abs() <= 0.5).all() and plan.actions[0, 3] < -0.3
    assert plan.action[0] == 1
    assert mpc(torch.tensor([2.0, 0.0]), warm_start=plan).actions.shape == (6, 4)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Categorical(1), "Categorical: choices must be an integer of at least 2, got 1"),
        (lambda: Categorical(2.0), "Categorical: choices must be an integer"),
        (lambda: Bernoulli(spread=0.0), "Bernoulli: spread must satisfy 0 < spread <= 1, got 0.0"),
        (lambda: Bernoulli(floor=1.1), "Bernoulli: floor must satisfy 0 <= floor <= 1, got 1.1"),
        (
            lambda: Categorical(3).init(torch.zeros(4)),
            "x0 must have a multiple of choices = 3 numbers, got 4",
        ),
        (lambda: Product([]), "Product: parts must hold at least one pair"),
        (lambda: Product([(Gaussian(), 0)]), "Product: parts must be pairs of a distribution and a positive"),
        (lambda: Product([Gaussian()]), "Product: parts must be pairs of a distribution and a positive"),
        (lambda: Product([(3, Gaussian())]), "Product: parts must be pairs of a distribution and a positive"),
        (lambda: Product([(Gaussian(), 2)], steps=0), "Product: steps must be a positive integer, got 0"),
        (lambda: MIXED.init(torch.zeros(3)), "Product: x0 must have the 10 numbers of its parts, got 3"),
        (
            lambda: minimize(lambda x: x.sum(-1), DCEM(distribution=Bernoulli()), torch.full((2,), 2.0)),
            r"x0 must lie within the bounds \(0.0, 1.0\)",
        ),
        (
            lambda: dcem.MPC(Gears(), 3, low=0.2, high=1.0, solver=DCEM(distribution=Categorical(3))),
            "Categorical: the bounds must hold 0 and 1",
        ),
        (
            lambda: dcem.MPC(Gears(), 3, solver=DCEM(distribution=Categorical(9))),
            "Categorical: every action must have a multiple of choices = 9 numbers, got 3",
        ),
    ],
)
def test_a_bad_call_says_what_is_wrong(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
