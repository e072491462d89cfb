"""The report of the regression study, from made-up results whose numbers are known."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from dcem_lab.regression import numbers as regression

X = np.linspace(0, 2 * np.pi, 20)
TARGET = X * np.sin(X)


def write(path: Path, columns: list[str], rows: np.ndarray) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *np.asarray(rows).tolist()])


def make_results(root: Path, name: str, growth: float, at_minimum: float, seeds: int = 3) -> None:
    """A variant with errors 1e-4 · growth^(t - 10) after t iterations and that share of answers at minima."""
    folder = root / "regression" / name
    folder.mkdir(parents=True)
    t = np.arange(1, 31)
    for k in range(seeds):
        error = (k + 1) * 1e-4 * growth ** (t - 10.0)
        predictions = TARGET + np.sqrt(error)[:, None]
        minima = predictions[9] + np.where(np.arange(20) < 20 * at_minimum, 0.04, 0.06)
        steps = np.arange(0, 1001, 10)
        y, x = np.linspace(-7, 4, 12), np.linspace(0, 2 * np.pi, 9)
        energy = (y[:, None] - x * np.sin(x)) ** 2
        curve = np.stack([steps, steps, 1 / (1 + steps), np.full(101, 1e-3)], 1)
        write(folder / f"seed{k}.csv", ["step", "seconds", "mse", "lr"], curve)
        write(folder / f"seed{k}_iterations.csv", ["iterations", "mse"], np.stack([t, error], 1))
        write(
            folder / f"seed{k}_predictions.csv",
            ["x", "y", *map(str, t)],
            np.column_stack([X, TARGET, *predictions]),
        )
        write(
            folder / f"seed{k}_minima.csv",
            ["x", "y", "prediction", "minimum"],
            np.column_stack([X, TARGET, predictions[9], minima]),
        )
        write(folder / f"seed{k}_energy.csv", ["y", *map(str, x)], np.column_stack([y, energy]))
    record = {"config": {"n_iters": 10}}
    (folder / "run.json").write_text(json.dumps({f"seed{k}": record for k in range(seeds)}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    make_results(tmp_path, "dcem", growth=1.0, at_minimum=0.95)
    make_results(tmp_path, "gd", growth=1.2, at_minimum=0.1)
    make_results(tmp_path, "gd-starts", growth=1.05, at_minimum=0.5)
    return tmp_path


def test_reads_what_was_written(results):
    dcem, gd, starts = regression.read_variants(results)
    assert [v.name for v in (dcem, gd, starts)] == ["dcem", "gd", "gd-starts"]
    assert gd.predictions.shape == (3, 30, 20)
    np.testing.assert_allclose(gd.error_at(10), [1e-4, 2e-4, 3e-4])
    np.testing.assert_allclose(gd.at_minimum, 0.1)
    np.testing.assert_allclose(((gd.predictions - gd.target) ** 2).mean(-1), gd.errors)
    assert dcem.surface.shape == (3, 12, 9)


def test_table_has_the_numbers_and_the_papers(results):
    rows = regression.table(regression.read_variants(results))
    assert rows[0]["MSE"] == "2.0e-04 [1.0e-04, 3.0e-04]"
    assert rows[0]["paper's MSE"] == "≈ 3e-4"
    assert rows[2]["paper's MSE"] == "not reported"
    assert rows[0]["ratio"] == "1 [1, 1]"
    assert rows[1]["ratio"].startswith(f"{1.2**20:.3g} ")
    assert rows[0]["within 0.05 of a minimum"] == "95% [95%, 95%]"


def test_words_follow_the_numbers(tmp_path, results):
    text = regression.in_words(regression.read_variants(results))
    assert text.count("supported") == 3
    assert "95% and 10% of the predictions" in text
    assert "does not rescue" in text  # 1.05^20 is above 2
    make_results(tmp_path / "other", "dcem", growth=1.2, at_minimum=0.2)
    make_results(tmp_path / "other", "gd", growth=1.0, at_minimum=1.0)
    make_results(tmp_path / "other", "gd-steps", growth=1.01, at_minimum=0.9)
    text = regression.in_words(regression.read_variants(tmp_path / "other"))
    assert text.count("contradicted") == 3
    assert "random steps: rescues gradient descent" in text
    assert "needs the results of both" in regression.in_words(regression.read_variants(results)[:1])


def test_says_that_there_are_no_results(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"regression must have results such as dcem/run.json"):
        regression.read_variants(tmp_path)
