"""The benchmark of argmin layers: its problems, their true gradients, its scores; soft top-k of others."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
# torch's own forward-mode derivatives still use it.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
PROBLEMS = ("quadratic", "multimodal", "projection", "pendulum", "regression")


@pytest.fixture
def script(monkeypatch):
    for folder in (FOLDER, FOLDER / "layers"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module


@pytest.fixture
def few(script, monkeypatch):
    """A few instances of a problem, with networks that were fitted for a shorter moment."""
    truth = script("truth")
    fit = truth._fit
    monkeypatch.setattr(truth, "_fit", lambda weights, loss, steps: fit(weights, loss, 100))
    return lambda name: truth.instances(name, 6)


@pytest.mark.parametrize("name", PROBLEMS)
def test_true_gradients_are_those_of_argmins_found_anew(script, few, name):
    given = few(name)
    assert given.gradient.norm(dim=-1).min() > 0
    assert script("truth").disagreement(name, given) < 1e-4


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "projection"])
def test_a_true_argmin_is_a_minimum_and_no_sample_is_lower(script, few, name):
    energy, given = script("energies").ENERGIES[name](torch), few(name)
    assert torch.linalg.eigvalsh(script("truth").hessians(energy, given.theta, given.x)).min() > 0
    x = given.x.clone().requires_grad_()
    lowest = energy(x.unsqueeze(-2), given.theta)
    assert torch.autograd.grad(lowest.sum(), x)[0].abs().max() < 1e-8
    near, far = (s * torch.randn(6, 500, energy.n, dtype=torch.float64) for s in (0.1, energy.sigma))
    for samples in (near + given.x.unsqueeze(-2), far):
        assert (energy(samples, given.theta) >= lowest).all()


def test_newtons_steps_end_in_minima_wherever_they_start(script, few):
    truth, theta = script("truth"), few("multimodal").theta.repeat(8, 1)
    energy = script("energies").ENERGIES["multimodal"](torch)
    x = 2 * torch.randn(len(theta), 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.linalg.eigvalsh(truth.hessians(energy, theta, x))[:, 0].min() < 0  # also from maxima
    with pytest.raises(ValueError, match="no minima"):
        truth.check("multimodal", theta, x)
    for _ in range(60):
        x = truth.newton_step(energy, theta, x)
    truth.check("multimodal", theta, x)


def test_the_quadratic_is_the_rollout_of_its_dynamics(script):
    energy = script("energies").Quadratic(torch)
    theta, x = (torch.randn(size, dtype=torch.float64) for size in (energy.m, energy.n))
    state, expected = theta[:4], []
    for push in x.view(energy.steps, 2):
        state = energy.dynamics @ state + energy.push @ push
        expected.append(torch.cat([state - theta[4:8], push]) * energy.scales(theta))
    torch.testing.assert_close(energy.residuals(x.unsqueeze(0), theta)[0], torch.cat(expected))


def test_the_projection_is_lml(script, few):
    import dcem

    given, projection = few("projection"), script("energies").Projection
    torch.testing.assert_close(given.x, projection.c * dcem.lml(given.theta, projection.k))
    torch.testing.assert_close(given.x.sum(-1), torch.ones(6, dtype=torch.float64))
    energy = projection(torch)
    lowest = energy(given.x.unsqueeze(-2), given.theta)
    other = given.x.roll(1, -1)  # feasible as well
    assert (energy(other.unsqueeze(-2), given.theta) > lowest).all()


def test_scores_of_a_perfect_layer_a_wrong_one_and_failures(script, few):
    judging, given = script("judging"), few("quadratic")
    perfect = judging.scores("quadratic", given, given.x, given.gradient)
    assert perfect["cosine"] == pytest.approx(1) and perfect["found"] == 1 and perfect["failures"] == 0
    assert perfect["excess"] == perfect["relative error"] == 0
    idle = judging.scores("quadratic", given, torch.zeros_like(given.x), -given.gradient)
    assert idle["cosine"] == pytest.approx(-1) and idle["relative error"] == pytest.approx(2)
    assert idle["excess"] == 1 and idle["found"] == 0

    class Fails:
        def run(self, theta, cotangent):
            if (theta[:, 0] == given.theta[2, 0]).any():
                raise ZeroDivisionError
            x = given.x[: len(theta)].clone()
            x[theta[:, 0] == given.theta[4, 0]] = torch.nan
            return x, torch.ones_like(theta)

    found = judging.judge(Fails(), "quadratic", given, seconds=9)
    assert (found["instances"], found["failures"], found["errors"]) == (6, 2, "ZeroDivisionError")


def test_calls_that_are_judged_have_one_size_after_a_first_one(script, few):
    judging, given, sizes = script("judging"), few("quadratic"), []

    class Notes:
        most = 4

        def run(self, theta, cotangent):
            sizes.append(len(theta))
            at = [int((given.theta == row).all(-1).nonzero()) for row in theta]
            return given.x[at], given.gradient[at]

    found = judging.judge(Notes(), "quadratic", given, seconds=9)
    assert sizes == [4, 4, 4] and found["instances"] == 6
    assert found["relative error"] == found["excess"] == 0  # none was taken for another


def test_a_run_renews_its_own_rows_and_makes_tables(script, tmp_path):
    # By its path: the benchmark of optimisers has a module of this name as well.
    spec = importlib.util.spec_from_file_location("layers_results", FOLDER / "layers" / "results.py")
    results = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(results)
    row = {"problem": "quadratic", "contender": "a", "cosine": 0.98765432, "failures": 0, "instances": 9}
    results.put(tmp_path, [row, row | {"contender": "b", "failures": 3}])
    results.put(tmp_path, [row | {"cosine": 0.5}])
    assert [r["cosine"] for r in results.read(tmp_path)] == ["0.5", "0.9877"]
    page = results.table("quadratic", results.read(tmp_path))
    assert "| a | 0.500 |" in page and "| 3 of 9 |" in page


@pytest.mark.parametrize("name", ["SOFT", "LapSum", "Euclidean"])
@pytest.mark.parametrize(("n", "k"), [(7, 3), (30, 6)])
def test_the_operators_of_others_sum_to_k_and_have_right_derivatives(script, name, n, k):
    operators = script("operators")
    operator = operators.OPERATORS[name]
    x = torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)).requires_grad_()
    tau = operators.matched(operator, x, k, 1.5 * k)
    y = operator(x, k, tau)
    assert (y.sum(-1) - k).abs().max() < 1e-9 and y.min() >= 0 and y.max() <= 1
    assert (y.sum(-1).square() / y.square().sum(-1)).mean().item() == pytest.approx(1.5 * k, rel=1e-4)
    order = x.argsort(-1)
    assert (y.gather(-1, order).diff(dim=-1) >= -1e-12).all()
    assert torch.autograd.gradcheck(lambda x: operator(x, k, tau), x)


def test_soft_topk_is_lml_at_half_its_temperature(script):
    import dcem

    x = torch.randn(4, 50, dtype=torch.float64)
    torch.testing.assert_close(script("operators").soft_topk(x, 5, 0.6), dcem.lml(x, 5, tau=0.3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1e-4, 1e-3, 1.0, 1e3])
def test_lapsum_is_exact_at_any_temperature(script, alpha, dtype):
    x = torch.randn(5, 40, dtype=dtype)
    y = script("operators").lapsum(x, 4, alpha)
    # A score of 1 at α = 1e-4 is 1e4 times it, with a rounding of 1e-3 in single precision.
    torch.testing.assert_close(y.sum(-1), torch.full((5,), 4.0, dtype=dtype), atol=1e-3, rtol=0)


@pytest.fixture
def embedding(script, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER / "embedding"))
    return script("training")


@pytest.mark.parametrize("name", ["lml", "SOFT", "LapSum", "Euclidean", "detached"])
def test_a_latent_space_is_trained_with_any_operator(embedding, name):
    tiny = embedding.Settings(
        updates=2, states=2, hidden=(8,), n_samples=20, n_elite=4, n_iters=2, ess=6.0, validation_states=3
    )
    found = embedding.train(name, tiny, seed=0)
    assert found["updates without a finite gradient"] == 0
    assert found["cost"] != found["cost before"]
    assert embedding.train(name, tiny, seed=0)["cost"] == found["cost"]


def test_the_search_with_lml_is_dcem(embedding):
    import dcem

    settings = embedding.Settings(n_samples=20, n_elite=4, ess=6.0)
    search = embedding.controller("lml", settings, seed=0).solver
    assert search.tau == pytest.approx(embedding.temperature("SOFT", settings) / 2, rel=1e-4)
    values = torch.randn(3, 20, dtype=torch.float64)
    own = dcem.DCEM(n_samples=20, n_elite=4, tau=search.tau, normalize=True)
    torch.testing.assert_close(search.weights(values, 0), own.weights(values, 0))


def test_a_run_of_one_operator_keeps_the_others(script, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER / "embedding"))
    spec = importlib.util.spec_from_file_location("embedding_run", FOLDER / "embedding" / "run.py")
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    for cost in (-1.0, -2.0):
        run.put(tmp_path, [{"operator": "LapSum", "seed": seed, "cost": cost} for seed in (0, 1)])
        run.put(tmp_path, [{"operator": "dcem.lml", "seed": 0, "failure": "why"}])
        run.note(tmp_path, "LapSum", {"cost": cost})
    lines = (tmp_path / "embedding.csv").read_text().splitlines()
    assert len(lines) == 4 and lines[1].startswith("dcem.lml,0,") and lines[2].startswith("LapSum,0,,,-2,")
    assert json.loads((tmp_path / "run.json").read_text()) == {"LapSum": {"cost": -2.0}}


def test_a_run_of_one_table_keeps_the_others(script, tmp_path):
    tables, path = script("tables"), tmp_path / "tables.md"
    tables.publish(path, "# Title", {"one": "## One\n\nfirst\n", "two": "## Two\n"})
    tables.publish(path, "# Title", {"one": "## One\n\nagain\n"})
    text = path.read_text()
    assert "first" not in text and text.index("again") < text.index("## Two")
    assert text.count("# Title") == 1


def test_compiled_solves_are_the_uncompiled_ones_where_their_start_is_timed(script, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER / "peers"))
    compiled, calls = script("compiled"), []
    monkeypatch.setattr(torch, "compile", lambda f, **_: calls.append(f) or f)
    for method in compiled.METHODS.values():
        answers = []
        for whether in (False, True):
            torch.manual_seed(0)
            call = method(whether)
            torch.manual_seed(1)
            found = call(3)
            answers.append(
                torch.cat([x.flatten() for x in (found if isinstance(found, tuple) else (found,))])
            )
        torch.testing.assert_close(*answers)
    assert len(calls) == len(compiled.METHODS)
    taken = compiled.start("mppi", (1, 2))
    assert list(taken) == [
        "first call, s",
        "first call, CPU s",
        "second batch size, s",
        "second batch size, CPU s",
    ]
    assert min(taken.values()) >= 0
