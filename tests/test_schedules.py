"""Settings that change from iteration to iteration, given and learned."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

import dcem
from dcem.backward import Checkpoint, Prune, Truncate, Unroll
from solver_cases import f

pytestmark = pytest.mark.usefixtures("double")
T = 3
SETTINGS = {
    "tau": (lambda v: dcem.DCEM(n_samples=12, n_elite=4, n_iters=T, tau=v), [0.9, 0.5, 0.3]),
    "n_elite": (lambda v: dcem.DCEM(n_samples=12, n_elite=v, n_iters=T, tau=1.0), [5.0, 4.0, 2.5]),
    "smoothing": (
        lambda v: dcem.DCEM(n_samples=12, n_elite=4, n_iters=T, tau=1.0, smoothing=v),
        [0.6, 0.1, 0.3],
    ),
    "widen": (lambda v: dcem.DCEM(n_samples=12, n_elite=4, n_iters=T, tau=1.0, widen=v), [1.5, 0.8, 1.1]),
    "widen, full": (
        lambda v: dcem.DCEM(
            n_samples=12, n_elite=4, n_iters=T, tau=1.0, widen=v, distribution=dcem.FullGaussian()
        ),
        [1.5, 0.8, 1.1],
    ),
    "widen, mppi": (lambda v: dcem.MPPI(n_samples=12, n_iters=T, widen=v), [1.5, 0.8, 1.1]),
    "learning_rate": (lambda v: dcem.GradientDescent(n_iters=T, learning_rate=v), [0.2, 0.1, 0.05]),
}


def answer(solver, noise=None, **options) -> torch.Tensor:
    noise = torch.randn(T, 2, 12, 2, generator=torch.Generator().manual_seed(0)) if noise is None else noise
    noise = [None] * T if isinstance(solver, dcem.GradientDescent) else noise
    return dcem.minimize(f, solver, torch.zeros(2, 2), noise=noise, **options).x


@pytest.mark.parametrize("name", SETTINGS)
def test_a_sequence_a_function_and_what_is_learned_are_the_same(name):
    make, values = SETTINGS[name]
    expected = answer(make(values))
    torch.testing.assert_close(answer(make(lambda t: values[t])), expected)
    torch.testing.assert_close(answer(make(list(map(torch.tensor, values)))), expected)
    torch.testing.assert_close(answer(make(dcem.PerIteration(torch.tensor(values)))), expected)
    same = [values[0]] * T
    torch.testing.assert_close(answer(make(same)), answer(make(values[0])))
    assert not torch.allclose(answer(make(same)), expected)


@pytest.mark.parametrize("mode", [Unroll(), Checkpoint(), Prune(1.0)], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_by_finite_differences(name, mode):
    make, values = SETTINGS[name]
    learned = torch.tensor(values, requires_grad=True)
    assert gradcheck(lambda v: answer(make(list(v.unbind())), backward=mode), learned)


def test_truncation_leaves_the_early_iterations_out():
    make, values = SETTINGS["tau"]
    tau = dcem.PerIteration(torch.tensor(values))
    answer(make(tau), backward=Truncate(1)).sum().backward()
    assert (tau.values.grad != 0).tolist() == [False, False, True]


@pytest.mark.parametrize("name", ["tau", "n_elite", "smoothing", "widen", "learning_rate"])
def test_they_are_parameters_of_the_layer_and_every_value_but_the_last_spread_learns(name):
    make, values = SETTINGS[name]
    setting = dcem.PerIteration(dcem.Positive(torch.tensor(values)))
    layer = dcem.Argmin(lambda x, y: (y - x).square().sum(-1), make(setting), n=2)
    (found,) = layer.parameters()
    assert found is setting.values.raw and list(layer.state_dict()) == [f"solver_{name}.values.raw"]
    for _ in range(2):  # a graph for every pass
        layer(torch.randn(4, 2)).square().sum().backward()
    used = T - 1 if name == "widen" else T  # nothing is sampled after the last
    assert (found.grad != 0).sum() == used


def test_widen_is_a_factor_on_the_fitted_spread():
    noise = torch.randn(1, 2, 12, 2)
    for distribution in (dcem.Gaussian(), dcem.FullGaussian()):
        plain, wide = (
            dcem.minimize(
                f,
                dcem.DCEM(n_samples=12, n_elite=4, n_iters=1, distribution=distribution, widen=factor),
                torch.zeros(2, 2),
                noise=noise,
            )
            for factor in (1.0, torch.tensor([2.0, 0.5]))
        )
        assert torch.equal(plain.x, wide.x)
        expected = plain.state.phi.sigma * torch.tensor([[2.0], [0.5]])
        torch.testing.assert_close(wide.state.phi.sigma, expected)


def test_smoothing_keeps_its_share_of_the_last_distribution():
    noise = torch.randn(2, 2, 12, 2)

    def solve(n_iters, smoothing):
        solver = dcem.DCEM(n_samples=12, n_elite=4, n_iters=n_iters, smoothing=smoothing)
        return dcem.minimize(f, solver, torch.zeros(2, 2), noise=noise[:n_iters]).state.phi

    first, kept, fitted = solve(1, 0.0), solve(2, [0.0, 0.7]), solve(2, 0.0)
    torch.testing.assert_close(kept.mean, 0.7 * first.mean + 0.3 * fitted.mean)
    torch.testing.assert_close(kept.sigma, 0.7 * first.sigma + 0.3 * fitted.sigma)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: dcem.DCEM(n_iters=3, smoothing=[0.1, 0.2]),
            r"smoothing as a sequence needs one value .*3.*2",
        ),
        (lambda: dcem.DCEM(n_iters=2, smoothing=[0.1, 1.2]), r"smoothing must lie in \[0, 1\], got 1.2$"),
        (lambda: dcem.MPPI(widen=-1.0), "MPPI: widen must be positive, got -1.0"),
        (lambda: dcem.GradientDescent(n_iters=2, learning_rate=[0.1, 0.0]), "learning_rate must be positive"),
        (lambda: dcem.Fraction(1.0), "Fraction: value must lie between 0 and 1, got 1.0"),
    ],
)
def test_a_wrong_schedule_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_learned_one_of_another_length_is_named():
    solver = dcem.DCEM(n_iters=4, tau=dcem.PerIteration(torch.ones(3)))
    with pytest.raises(ValueError, match=r"tau as a sequence needs one value per iteration \(4\), got 3"):
        dcem.minimize(f, solver, torch.zeros(2))


def test_a_fraction_stays_one():
    share = dcem.Fraction(torch.tensor([0.25, 0.5]))
    torch.testing.assert_close(share().detach(), torch.tensor([0.25, 0.5]))
    optimizer = torch.optim.SGD(share.parameters(), lr=10.0)
    for _ in range(20):
        optimizer.zero_grad()
        (share()[1] - share()[0]).backward()
        optimizer.step()
    assert ((share() > 0) & (share() < 1)).all() and share()[0] > 0.9 and share()[1] < 0.1


def test_a_controller_learns_schedules_too():
    solver = dcem.DCEM(
        n_samples=20,
        n_iters=T,
        tau=dcem.PerIteration(dcem.Positive(torch.full((T,), 0.5))),
        smoothing=dcem.PerIteration(dcem.Fraction(torch.full((T,), 0.2))),
        widen=dcem.PerIteration(torch.ones(T)),
        distribution=dcem.Gaussian(sigma=dcem.Positive(torch.full((5,), 0.5))),
    )

    class Integrator(nn.Module):
        action_dim = 1

        def step(self, state, action):
            return state + action, (state + action).square().sum(-1)

    mpc = dcem.MPC(Integrator(), horizon=5, solver=solver)
    assert len(list(mpc.parameters())) == 4
    mpc(torch.randn(4, 1)).cost.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in mpc.parameters())
