"""The benchmark of optimisers: its scores and tables, without the functions and the peers."""

import csv
import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    for folder in (FOLDER, FOLDER / "optimisers"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module


def run(optimiser="a", function=1, reached="", **more):
    row = {"optimiser": optimiser, "function": function, "dimension": 2, "instance": 1, "draw": 0}
    return row | {"budget": 100, "seconds": "0.5", "error": "", "reached": reached} | more


def test_every_function_is_in_one_group(script):
    scoring = script("scoring")
    assert [f for functions in scoring.GROUPS.values() for f in functions] == list(scoring.FUNCTIONS)
    assert scoring.group_of(9) == "moderate" and scoring.group_of(10) == "ill-conditioned"


def test_a_target_counts_from_the_first_evaluation_that_reaches_it(script):
    scoring = script("scoring")
    assert len(scoring.TARGETS) == 51
    assert scoring.TARGETS[0] == 100 and scoring.TARGETS[-1] == pytest.approx(1e-8)
    reached = []
    scoring.evaluations_to_targets([500.0, 50.0, 80.0], 0, reached)
    assert reached == [2, 2]  # 100 and 63, at the second evaluation
    scoring.evaluations_to_targets([60.0], 3, reached)
    assert reached == [2, 2]
    scoring.evaluations_to_targets([90.0, 0.0], 4, reached)
    assert reached == [2, 2] + [6] * 49
    assert scoring.share(reached) == 1 and scoring.share(reached[:2]) == 2 / 51


def test_a_curve_ends_at_the_mean_share(script):
    scoring = script("scoring")
    runs = [[1, 5, 7], [], [2]]
    curve = scoring.curve(runs, [0, 1, 5, 100])
    np.testing.assert_allclose(curve, np.array([0, 1, 3, 4]) / (3 * 51))
    assert curve[-1] == pytest.approx(np.mean([scoring.share(reached) for reached in runs]))


def test_a_run_renews_its_own_row(script, tmp_path):
    results, path = script("results"), tmp_path / "new" / "runs.csv"
    results.put(path, [run("a, b", reached="1 2"), run("c")])
    table = results.put(path, [run("a, b", reached="3"), run("a, b", budget=1000)])
    found = [(row["optimiser"], row["budget"], row["reached"]) for row in table]
    assert found == [("a, b", "100", "3"), ("c", "100", ""), ("a, b", "1000", "")]


def test_the_summary_has_shares_by_group_and_counts_failures_as_nothing(script, tmp_path):
    results = script("results")
    rows = [run(reached="1 1 1"), run(function=6), run(function=6, instance=2, error="it broke")]
    (line,) = results.summary(results.put(tmp_path / "runs.csv", rows))
    assert float(line["all"]) == pytest.approx(1.5 / 51, abs=1e-3)  # both functions count the same
    assert float(line["separable"]) == pytest.approx(3 / 51, abs=1e-3) and line["moderate"] == "0.000"
    assert line["multimodal"] == "" and line["failed"] == 1
    assert line["instances"] == "1-2" and line["draws"] == "1"


def test_draws_of_the_noise_make_the_interval_of_a_ratio(script, tmp_path):
    results, rng = script("results"), np.random.default_rng(0)

    def compared(runs):
        """Two optimisers, the first of which reaches 0.8 times as many targets of both functions."""
        rows = [
            run(name, function, draw=draw, reached="1 " * rng.binomial(51, chance * level))
            for name, level in (("cmaes", 0.8), ("pycma CMA-ES", 1.0))
            for function, chance in ((1, 0.9), (6, 0.4))
            for draw in range(runs)
        ]
        return results.ratios(results.put(tmp_path / f"{runs}.csv", rows))

    few, many = (compared(runs)[0] for runs in (5, 500))
    assert (many["group"], many["runs a function"]) == ("all", "500 and 500")
    assert float(many["low"]) <= float(many["ratio"]) <= float(many["high"])
    assert float(many["ratio"]) == pytest.approx(0.8, abs=0.01)
    wide, narrow = (float(row["high"]) - float(row["low"]) for row in (few, many))
    assert wide > 4 * narrow
    assert compared(1) == []  # one run has no spread


def test_the_curves_make_a_picture(script, tmp_path):
    pytest.importorskip("matplotlib")
    results = script("results")
    curves = results.curves(results.put(tmp_path / "runs.csv", [run(reached="1 150 200"), run("b")]))
    own = [row for row in curves if (row["optimiser"], row["group"]) == ("a", "all")]
    assert [float(own[i]["share"]) for i in (0, -1)] == pytest.approx([1 / 51, 3 / 51], abs=1e-4)
    results.draw(curves, tmp_path)
    assert (tmp_path / "ecdf_2d_100.svg").stat().st_size > 10_000


def test_many_problems_have_their_optimum_at_the_shift(script):
    many = script("many")
    for make in many.PROBLEMS.values():
        problems = make(3, 4, 0)
        assert np.abs(problems(problems.shift)).max() == 0
        x = np.random.default_rng(1).standard_normal((3, 5, 4))
        values = problems(x)
        assert values.shape == (3, 5) and (values > 0).all()
        np.testing.assert_allclose(problems.row(2)(x[2]), values[2])


def test_a_peer_solves_problems_one_by_one_within_its_budget(script):
    many, asked = script("many"), []

    def endless(f, dimension, budget, seed):
        while True:
            asked.append(seed)
            f(np.full((3, dimension), 0.1 * len(asked)))

    size = {"problems": 5, "solved": 2, "dimension": 4, "budget": 7, "seed": 10}
    reply = many.one_by_one({"a": endless})(optimiser="a", problem="ellipsoid", **size)
    assert asked == [10] * 4 + [11] * 4  # three batches fit, the last of them in part; the fourth is refused
    row = many.PROBLEMS["ellipsoid"](5, 4, 10).row(0)
    assert reply["best"][0] == pytest.approx(min(row(np.full((1, 4), x)).item() for x in (0.1, 0.2, 0.3)))
    assert len(reply["best"]) == 2 and reply["seconds"] > 0


def test_evaluations_to_a_quality_count_those_of_gradients(script):
    torch = pytest.importorskip("torch")
    refine = script("refine")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        plain, refined = (refine.evaluations("sphere", "CMAES", r) for r in (None, refine.dcem.Refine()))
    finally:
        torch.set_default_dtype(before)
    assert plain % 10 == 0 and refined % 13 == 0  # samples per iteration, and 3 for the gradient
    assert refined < plain / 2


def test_a_contender_that_fails_answers_with_its_error():
    code = "import serving\ndef answer(do): raise ValueError('no ' + do)\nserving.answer_requests(answer)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER, input='{"do": "luck"}\n', capture_output=True, text=True
    )
    assert json.loads(done.stdout) == {"error": "ValueError: no luck"}


def test_the_committed_summary_is_that_of_the_committed_runs(script):
    results, folder = script("results"), FOLDER / "optimisers" / "results"
    if not folder.exists():
        pytest.skip("no run is committed")
    summary = results.summary(results.read(folder / "runs.csv"))
    committed = list(csv.DictReader((folder / "summary.csv").read_text().splitlines()))
    assert committed == [{key: str(value) for key, value in row.items()} for row in summary]
