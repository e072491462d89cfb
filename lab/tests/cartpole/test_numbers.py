"""The report of the cartpole study, from made-up results whose numbers are known."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from dcem_lab.cartpole.numbers import PAPER_EXPERT, PAPER_FACTORS, STRONG, factors, in_words, read


def write(path: Path, columns: list[str], rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def make_variant(folder: Path, factor: float, **record) -> None:
    """Three seeds whose best validation costs are 0.99, 1 and 1.01 times `factor` times the expert's."""
    columns = ["step", "seconds", "validation_cost", "best_cost", "train_cost", "grad_norm", "lr"]
    for seed, scale in enumerate((0.99, 1.0, 1.01)):
        best = scale * factor * PAPER_EXPERT
        rows = [[100 * i, i, best + 5 / i, best + 5 / i, best + 1, 1, 1e-3] for i in range(1, 100)]
        write(folder / f"seed{seed}.csv", columns, [*rows, [10_000, 100, best, best, best, 1, 1e-3]])
    entry = {"config": {"states_per_update": 8}, **record}
    (folder / "run.json").write_text(json.dumps({f"seed{seed}": entry for seed in range(3)}))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("results")
    home, scores = root / "cartpole", []
    for (dim, tau), paper in PAPER_FACTORS.items():
        better = tau == 1 or dim == 2
        make_variant(home / f"d{dim}-tau{tau:g}", paper + (0.05 if better else -0.3))
        for seed in range(3):
            name = f"d{dim}-tau{tau:g}-seed{seed}"
            kinds = ("validation", "fresh")
            scores += [[name, kind, draw, 1000, -9.0 - draw] for kind in kinds for draw in (0, 1)]
    make_variant(home / "one-state" / "d2-tau1", 1.0, note="interrupted at 43,400 of 100,000 updates")
    columns = ["controller", "states", "draw", "trajectories", "cost"]
    write(home / "reevaluation.csv", columns, scores)
    experts = {"expert-100-10-30": (-9.0, 3000), STRONG: (-10.0, 10_000), "pca-2": (-9.5, 40_000)}
    rows = [[name, kind, 0, n, c] for name, (c, n) in experts.items() for kind in ("validation", "fresh")]
    write(home / "baselines.csv", columns, rows)
    axis = np.linspace(-1, 1, 9)
    for name in ("tau1", "tau0.1", "tau0", "pca"):
        cost = (axis[:, None] - 0.25) ** 2 + (axis + 0.5) ** 2 - 9
        write(
            home / "pictures" / f"surface_{name}_0.csv",
            ["z1", *map(str, axis)],
            np.column_stack([axis, cost]),
        )
    for method, points in (("cem", []), ("dcem", ["z0", "z1"])):
        rows = [
            [t, kind, -t, 10 * t, *[0.1] * len(points), *np.linspace(-t, t, 20)]
            for t in range(1, 11)
            for kind in ("sample", "sample", "mean")
        ]
        names = ["iteration", "kind", "cost", "sampled", *points, *(f"u{i}" for i in range(20))]
        write(home / "pictures" / f"{method}_samples.csv", names, rows)
    return root


def test_factors_and_verdicts(results):
    rows = {(row["latent dimension"], row["τ"]): row for row in factors(read(results))}
    assert len(rows) == 9
    row = rows["2", "1"]
    assert row["paper"] == "1.083" and row["ours"] == "1.133"
    spread = 4.303 * 0.01 * 1.133 / np.sqrt(3)
    assert row["95% interval"] == f"[{1.133 - spread:.3f}, {1.133 + spread:.3f}]"
    assert row["verdict"] == "above, beyond the interval"
    assert rows["16", "0"]["verdict"] == "below, beyond the interval"
    assert row["fresh noise"].startswith(f"{9.5 / 9.046:.3f}")
    assert row["fresh states"].startswith(f"{9.5 / 9:.3f}")
    assert row["against the strong expert"].startswith("0.950")
    assert (row["one state an update"], row["stopped after"]) == ("1.000", "80,000")


def test_in_words(results):
    said = in_words(read(results))
    assert "for 3 of 3 latent dimensions" in said
    assert "(latent dimension 8) has a validation cost of -11.30" in said
    assert "with fresh noise it costs -9.50 [-10.00, -9.00], with 1,000" in said
    assert "The strong expert costs -10.00 [-10.00, -10.00] with 10,000." in said
