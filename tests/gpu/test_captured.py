"""Whole solves as CUDA graphs."""

import subprocess
import sys

import pytest
import torch

import dcem

pytestmark = pytest.mark.gpu


def quadratic(centre: torch.Tensor):
    return lambda x: (x - centre.unsqueeze(-2)).square().sum(-1)


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_replay_equals_eager(tau: float) -> None:
    solver = dcem.DCEM(n_samples=64, n_elite=8, n_iters=5, tau=tau)
    centre = torch.randn(3, 4, device="cuda")
    noise = torch.randn(5, 3, 64, 4, device="cuda")
    solve = dcem.capture(lambda x0, noise: dcem.minimize(quadratic(centre), solver, x0, noise=noise).x)
    for _ in range(3):
        x0 = torch.randn(3, 4, device="cuda")
        noise = torch.randn(5, 3, 64, 4, device="cuda")
        expected = dcem.minimize(quadratic(centre), solver, x0, noise=noise).x
        torch.testing.assert_close(solve(x0, noise), expected)


def test_gradients_reach_inputs_and_parameters() -> None:
    solver = dcem.DCEM(n_samples=64, n_elite=8, n_iters=5)
    centre = torch.randn(3, 4, device="cuda", requires_grad=True)
    noise = torch.randn(5, 3, 64, 4, device="cuda")

    def solution(x0: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sol = dcem.minimize(quadratic(centre), solver, x0, noise=noise)
        return sol.x, sol.cost

    captured = dcem.capture(solution, parameters=[centre])
    for _ in range(3):
        x0 = torch.randn(3, 4, device="cuda", requires_grad=True)
        weights = torch.randn(3, 4, device="cuda")
        answers = []
        for f in (solution, captured):
            x, cost = f(x0)
            answers.append(torch.autograd.grad((x * weights).sum() + cost.sum(), [x0, centre]))
            del x, cost  # they would tie the centre to the stream they were made on
        for expected, got in zip(*answers, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            centre += 0.1  # in place: the next replay must see it


LATE = """
import torch, dcem
centre = torch.ones(3, device="cuda", requires_grad=True)
noise = torch.randn(2, 64, 3, device="cuda")
solver = dcem.DCEM(n_samples=64, n_elite=8, n_iters=2)
def solution(x0):
    return dcem.minimize(lambda x: (x - centre).square().sum(-1), solver, x0, noise=noise).x
x0 = torch.zeros(3, device="cuda")
alive = solution(x0)
captured = dcem.capture(solution, parameters=[centre])
(expected,) = torch.autograd.grad(alive.sum(), centre, retain_graph=True)
try:
    (found,) = torch.autograd.grad(captured(x0).sum(), centre)
except RuntimeError as error:
    assert "delete those results" in str(error), error
    print("named")
else:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    print("right")
"""


def test_results_that_are_still_alive_are_named_or_do_no_harm() -> None:
    """In a process of its own: a capture that fails may leave the device unfit for others."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() in ("named", "right"), done.stderr[-2000:]


def test_every_replay_draws_anew_and_a_generator_reproduces() -> None:
    solver = dcem.DCEM(n_samples=64, n_elite=8, n_iters=2)
    generator = torch.Generator("cuda").manual_seed(0)
    centre = torch.zeros(4, device="cuda")
    f = lambda x0: dcem.minimize(quadratic(centre), solver, x0, generator=generator).x  # noqa: E731
    captured = dcem.capture(f, generator=generator)
    x0 = torch.ones(4, device="cuda")
    captured(x0)
    generator.manual_seed(1)
    first = [captured(x0) for _ in range(2)]
    generator.manual_seed(1)
    second = [captured(x0) for _ in range(2)]
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


def test_a_new_signature_is_captured_anew() -> None:
    solver = dcem.DCEM(n_samples=64, n_elite=8, n_iters=20, tau=0.1)
    solve = dcem.capture(lambda c: dcem.minimize(quadratic(c), solver, torch.zeros_like(c)).x)
    for shape in [(4,), (2, 4), (4,)]:
        for dtype in (torch.float32, torch.float64):
            c = torch.rand(shape, device="cuda", dtype=dtype)
            x = solve(c)
            assert x.shape == c.shape and x.dtype == dtype
            torch.testing.assert_close(x, c, atol=0.1, rtol=0)


def test_the_cpu_runs_the_function_itself() -> None:
    assert torch.equal(dcem.capture(lambda x: 2 * x)(torch.ones(2)), torch.full((2,), 2.0))


BOX = (-2.0, 2.0)


@pytest.mark.parametrize(
    "distribution",
    [
        dcem.Gaussian(),
        dcem.Gaussian(bounds=BOX),
        dcem.Gaussian(bounds=BOX, boundary="truncate"),
        dcem.FullGaussian(bounds=BOX, boundary="squash"),
    ],
)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("tau", [0.0, 0.5])
def test_a_solve_never_waits_for_the_host(distribution: object, tau: float) -> None:
    solver = dcem.DCEM(n_samples=64, n_elite=8, n_iters=5, tau=tau, distribution=distribution)
    centre = torch.randn(3, 4, device="cuda", requires_grad=True)
    x0 = torch.zeros(3, 4, device="cuda", requires_grad=True)

    def run() -> None:
        sol = dcem.minimize(quadratic(centre), solver, x0)
        (sol.x.sum() + sol.cost.sum()).backward()

    run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_training_step_is_the_same_captured() -> None:
    """The step changes its parameters in place; warming up must leave no trace."""
    solver = dcem.DCEM(n_samples=64, n_elite=8, n_iters=5)
    goal = torch.tensor([0.5, -0.5], device="cuda")
    results = []
    for captured in (False, True):
        centre = torch.zeros(2, device="cuda", requires_grad=True)
        generator = torch.Generator("cuda").manual_seed(0)

        def step(noise: torch.Tensor, centre: torch.Tensor = centre) -> torch.Tensor:
            with torch.enable_grad():
                x = dcem.minimize(quadratic(centre), solver, torch.zeros_like(centre), noise=noise).x
                loss = (x - goal).square().sum()
                (gradient,) = torch.autograd.grad(loss, centre)
            with torch.no_grad():
                centre -= 0.3 * gradient
            return loss.detach()

        run = dcem.capture(step, changes=[centre], generator=generator) if captured else step
        draws = torch.Generator("cuda").manual_seed(1)
        for _ in range(10):
            loss = run(torch.randn(5, 64, 2, device="cuda", generator=draws))
        results.append((centre.detach().clone(), loss))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_graphs_that_replay_side_by_side_share_no_scratch_memory() -> None:
    """Products of long rows are split, and their parts added up in scratch memory."""
    factors = [torch.randn(2, 64, 50_000, device="cuda", dtype=torch.float16) / 200 for _ in range(2)]

    def products(which: int) -> dcem.capture:
        a, b = factors[which]
        return dcem.capture(lambda x: (a * x) @ b.T)

    one, expected = torch.ones(1, device="cuda", dtype=torch.float16), [a @ b.T for a, b in factors]
    captured = [products(0), products(1)]
    for multiply in (*captured, products(0)):  # the third is gone at once
        multiply(one)
    side = torch.cuda.Stream()
    for _ in range(200):
        side.wait_stream(torch.cuda.current_stream())
        here = captured[0](one)
        with torch.cuda.stream(side):
            there = captured[1](one)
        torch.cuda.current_stream().wait_stream(side)
        torch.testing.assert_close([here, there], expected, rtol=1e-2, atol=1e-2)
