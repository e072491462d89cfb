"""Weights and moments in one step of autograd are what they are in two."""

import pytest
import torch
from torch import Tensor

import dcem
from dcem import _native
from dcem.distributions.gaussian import GaussianState
from dcem.solvers import dcem as module
from dcem.solvers import refit
from dcem.solvers.sampling import SamplingState
from versions import COMPILES

needs_compiler = pytest.mark.skipif(not _native.kernels(), reason="no C++ compiler here")
SETTINGS = [
    {"tau": 1.0, "normalize": True, "distribution": dcem.Gaussian(estimator="likelihood")},
    {"tau": 1.0, "normalize": "half"},
    {"tau": 0.5, "normalize": False, "distribution": dcem.Gaussian(sigma=torch.full((3,), 0.7))},
    {"tau": 1e-3, "normalize": True, "smoothing": 0.2},  # whose gradients are those of a warmer one
]


def refitted(solver: dcem.DCEM, values: Tensor, u: Tensor, mean: Tensor, sigma: Tensor) -> tuple[Tensor, ...]:
    phi = solver.distribution.init(torch.zeros_like(mean))._replace(mean=mean, sigma=sigma)
    state, weights = solver.refit(SamplingState(phi), u, values, 0)
    return weights, *state.phi


def inputs(*batch: int) -> list[Tensor]:
    shapes = (*batch, 8), (*batch, 8, 3), (*batch, 3), (*batch, 3)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    return [x.requires_grad_() for x in (*drawn[:3], drawn[3].exp())]


@needs_compiler
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_one_step_is_two(monkeypatch, settings):
    solver = dcem.DCEM(n_samples=8, n_elite=3, **settings)
    given = inputs(2)

    def run() -> list[Tensor]:
        found = refitted(solver, *given)
        names = {found[0].grad_fn.name(), found[1].grad_fn.name()}
        steps.append("_RefitBackward" in names)
        total = sum((x * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in found)
        return [*found, *torch.autograd.grad(total, given, materialize_grads=True)]

    steps: list[bool] = []
    one = run()
    monkeypatch.setattr(module, "refit_by_kernel", lambda *_: None)
    two = run()
    assert steps == [True, False]
    assert all(torch.equal(a, b) for a, b in zip(one[:3], two[:3], strict=True))
    torch.testing.assert_close(one[3:], two[3:])


@needs_compiler
@pytest.mark.skipif(not COMPILES, reason="older versions of torch run solves uncompiled")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of Dynamo's making
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_compiled_it_is_the_same(settings):
    solver = dcem.DCEM(n_samples=8, n_elite=3, **settings)
    given = inputs(2)

    def run(refit) -> list[Tensor]:
        found = refit(solver, *given)
        total = sum((x * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in found)
        return [*found, *torch.autograd.grad(total, given, materialize_grads=True)]

    torch.testing.assert_close(
        run(torch.compile(refitted, backend="aot_eager", fullgraph=True)), run(refitted)
    )


@needs_compiler
@pytest.mark.parametrize("rank_mu", [True, False])
def test_the_operators_do_what_compilers_are_told(rank_mu):
    values, u, *last = (x.detach() for x in inputs(2))
    last = last if rank_mu else [None, None]
    settings = 3.0, 1.0, 0.0, 15, 0.5, 1e-9, 1e-9
    given = values, u, *last, None, *settings
    weights, mean, sigma, keep = torch.ops.dcem.refit(*given)
    back = values, u, *last, weights, mean, keep, weights, mean, sigma, *settings
    for operator, arguments in ((torch.ops.dcem.refit, given), (torch.ops.dcem.refit_backward, back)):
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


@needs_compiler
@pytest.mark.parametrize("settings", SETTINGS[:3], ids=str)
def test_derivatives_of_any_order(settings):
    solver = dcem.DCEM(n_samples=8, n_elite=3, **settings)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda *given: refitted(solver, *given), inputs())


@needs_compiler
def test_a_part_of_the_outputs_is_enough():
    solver = dcem.DCEM(n_samples=8, n_elite=3, **SETTINGS[0])
    values, u, *phi = inputs()
    for i in range(3):
        output = refitted(solver, values, u, *phi)[i]
        (gradient,) = torch.autograd.grad(output.square().sum(), values, create_graph=True)
        (plain,) = torch.autograd.grad(refitted(solver, values, u, *phi)[i].square().sum(), values)
        torch.testing.assert_close(gradient, plain)
        assert gradient.requires_grad


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_with_a_graph_are_those_without_where_one_sample_has_all_the_weight(dtype):
    """The variance of the weighted samples is 0 there, but not its derivative by the weights."""
    solver = dcem.DCEM(n_samples=8, n_elite=1, tau=1e-4)
    given = [x.detach().to(dtype).requires_grad_() for x in inputs()]
    weights, _, sigma = refitted(solver, *given)
    assert ((weights < 1e-38) | (weights == 1)).all()
    with_graph = torch.autograd.grad(sigma.sum(), given, create_graph=True)
    torch.testing.assert_close(with_graph, torch.autograd.grad(refitted(solver, *given)[2].sum(), given))


def test_other_devices_are_left_to_two_steps_at_once(monkeypatch):
    """Nothing is launched there for a decision that is known before."""
    monkeypatch.setattr(refit, "slopes_at", lambda *_: pytest.fail("computed for nothing"))
    values, u, *phi = (x.detach().to("meta").requires_grad_() for x in inputs())
    state = GaussianState(*phi)
    assert refit.refit_by_kernel(dcem.Gaussian(), state, u, (values, 3, 1.0, False), 0.0) is None


def test_a_subclass_keeps_weights_of_its_own():
    class Even(dcem.DCEM):
        def weights(self, values: Tensor, t: int) -> Tensor:
            return torch.ones_like(values)

    values, u, *phi = inputs(2)
    weights, mean, _ = refitted(Even(n_samples=8, n_elite=3), values, u, *phi)
    assert (weights == 1).all()
    torch.testing.assert_close(mean, u.mean(-2))


@pytest.mark.parametrize("good", [True, False], ids=["finite", "some not finite"])
def test_mppi_has_the_weights_of_its_formula(good):
    values = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if not good:
        values[0, 3], values[1, 5] = torch.nan, torch.inf
    left_out = torch.where(values.isfinite(), values, torch.inf)
    weights = dcem.MPPI(temperature=0.3, normalize=False).weights(values, 0)
    torch.testing.assert_close(weights, (-left_out / 0.3).softmax(-1))
