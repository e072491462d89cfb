"""DCEM(ess=...): the temperature at which updates rest on as many samples as asked for."""

import pytest
import torch

from dcem import DCEM, minimize
from dcem.solvers.effective import temperature_for
from dcem.topk import lml
from problems import sphere

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("ess", [11, 20.5, 50, 95])
def test_every_row_has_the_effective_sample_size(ess, dtype):
    v = torch.randn(4, 3, 100).to(dtype)
    v[1] = v[1].square() * 10
    v[2] = v[2].exp()
    w = lml(-v, 10, temperature_for(v, 10, ess).squeeze(-1))
    assert torch.allclose(w.sum(-1).square() / w.square().sum(-1), torch.tensor(ess).to(dtype), rtol=1e-3)


@pytest.mark.parametrize("normalize", [True, "half"])
@pytest.mark.parametrize(
    "ess", [8.0, [15.0, 10.0, 8.0], lambda t: 15.0 - 3 * t, torch.tensor([8.0, 12.0])], ids=str
)
def test_a_solve_keeps_it_in_every_iteration(ess, normalize):
    solver = DCEM(n_samples=30, n_elite=5, n_iters=3, ess=ess, normalize=normalize)
    sol = minimize(lambda x: sphere(x, torch.ones(2)), solver, torch.zeros(2, 2), trace=True)
    for t, record in enumerate(sol.trace):
        expected = ess(t) if callable(ess) else ess[t] if isinstance(ess, list) else ess
        assert torch.allclose(record.effective_samples, torch.as_tensor(expected).double(), rtol=1e-3)


def test_it_is_the_answer_of_that_temperature():
    noise = torch.randn(1, 30, 2)
    f = lambda x: sphere(x, torch.ones(2))  # noqa: E731
    by_tau = minimize(
        f, DCEM(n_samples=30, n_elite=5, n_iters=1, tau=0.4), torch.zeros(2), noise=noise, trace=True
    )
    ess = by_tau.trace[0].effective_samples.item()
    by_ess = minimize(f, DCEM(n_samples=30, n_elite=5, n_iters=1, ess=ess), torch.zeros(2), noise=noise)
    assert torch.allclose(by_ess.x, by_tau.x, atol=1e-6)


def test_the_root_is_differentiated_implicitly():
    v, k, ess = torch.randn(2, 9), torch.tensor(2.5), torch.tensor([4.0, 6.0]).unsqueeze(-1)
    inputs = [x.requires_grad_() for x in (v, k, ess)]
    assert torch.autograd.gradcheck(temperature_for, inputs)
    assert torch.autograd.gradgradcheck(temperature_for, inputs)


def test_first_and_second_derivatives_of_a_whole_solve():
    noise = 1.2 * torch.randn(2, 2, 8, 2)

    def solve(theta, ess):
        solver = DCEM(n_samples=8, n_elite=2, n_iters=2, ess=ess)
        return minimize(lambda x: torch.cosh(x - theta).sum(-1), solver, torch.zeros(2, 2), noise=noise).x

    inputs = [x.requires_grad_() for x in (torch.randn(2), torch.tensor(5.0))]
    assert torch.autograd.gradcheck(solve, inputs) and torch.autograd.gradgradcheck(solve, inputs)


def test_rows_without_a_temperature_that_would_do_stay_finite():
    v = torch.zeros(2, 20, requires_grad=True)
    tau = temperature_for(v, 5, 10)
    (gradient,) = torch.autograd.grad(tau.sum(), v)
    assert tau.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tau": 0.5, "ess": 20}, r"tau must be left out where ess is given, got tau=0.5"),
        ({"ess": 100}, r"ess must lie between n_elite = 10 and n_samples = 100, got 100"),
        ({"ess": 5}, r"ess must lie between n_elite = 10 and n_samples = 100, got 5"),
        ({"ess": [20, 10]}, r"ess as a sequence needs one value per iteration \(10\), got 2"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings, words):
    with pytest.raises(ValueError, match=f"^DCEM: {words}"):
        DCEM(**settings)
