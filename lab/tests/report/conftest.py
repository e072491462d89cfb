"""Sources of a page with every section filled: the committed study, and made-up results for the rest."""

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dcem_lab.report.sources import Sources

ROOT = Path(__file__).parents[3]


def write_rows(path: Path, columns: Sequence[str], rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def write_trainings(results: Path) -> None:
    """Two seeds of each task, whose evaluations rise to 600 and 900, and phase 2 of one, stopped early."""
    record = {
        "command": "dcem train planet task=cheetah-run preset=best run_dir=runs/a",
        "machine": {"cpu": "a CPU", "cores": 16, "gpu": "a GPU"},
        "wall_seconds": 7300,
        "versions": {"torch": "2.11.0"},
    }
    columns = ["env_steps", "updates", "seconds", "return", "eval_mean", "eval_median"]
    for task, top in (("cheetah-run", 600), ("walker-walk", 900)):
        for seed in range(2):
            folder = results / "planet" / f"{task}-best" / f"seed{seed}"
            rows = [
                [steps, steps // 4, steps / 100, "", top * steps / 2e6 + seed, top * steps / 2e6]
                for steps in range(100_000, 2_000_001, 100_000)
            ]
            write_rows(folder / "curve.csv", columns, [[50_000, 1, 1, 3.5, "", ""], *rows])
            (folder / "run.json").write_text(json.dumps({**record, "seed": seed}))
    latent = results / "embed" / "cheetah-run-T5" / "seed0"
    rows = [
        [20_000, 10, 60, "", 222, 211, -7.5],
        [40_000, 20, 120, "", 321, 345, -8.25],
        [44_000, 22, 130, 300, "", "", ""],
    ]
    write_rows(latent / "curve.csv", [*columns, "decoder_cost"], rows)
    stopped = {"command": "dcem train embed from=a", "wall_seconds": 131, "step": 44, "steps": 500}
    (latent / "run.json").write_text(json.dumps({**record, **stopped}))


def write_evaluations(results: Path) -> None:
    """100 episodes of each controller, spread evenly around a known median."""
    medians = {
        ("cheetah-run", "full-cem"): 701,
        ("cheetah-run", "latent-dcem"): 900,
        ("cheetah-run", "full-cem-100"): 500,
        ("walker-walk", "full-cem"): 700,
    }
    rows = [
        [task, controller, "run0", 1000, 10, episode, total]
        for (task, controller), median in medians.items()
        for episode, total in enumerate(median + np.linspace(-50, 50, 101))
    ]
    names = ["task", "controller", "run", "samples", "iterations", "episode_seed", "total"]
    write_rows(results / "dmc" / "evaluations.csv", names, rows)


def write_planning(results: Path) -> None:
    """On a CPU alone."""
    names = ["task", "controller", "weights", "samples", "iterations", "trajectories", "ms_1", "ms_16",
             "kind", "device", "threads", "load"]  # fmt: skip
    rows = [
        ["cheetah-run", "full-cem", "cheetah-run", 1000, 10, 10_000, 2345.6, 34567.8, "cpu", "a CPU", 2, 0.5],
        ["cheetah-run", "full-cem-100", "cheetah-run", 100, 10, 1000, 77.7, 888.8, "cpu", "a CPU", 2, 0.5],
    ]
    write_rows(results / "dmc" / "planning.csv", names, rows)


def write_gpu_benchmark(folder: Path) -> None:
    columns = ["case", "what", "ms", "ratio", "MB", "GFLOP", "floor, ms", "ms / floor"]
    for name in ("lml", "dcem"):
        case = "1×100, k=10, forward+backward"
        rows = [
            [case, "dcem, captured", 0.0123, 1, 0.1, 0, 0.001, 12.3],
            [case, "released code, as published", "", "", 0.1, 0, 0.001, ""],
            [case, "torch.topk, captured", 0.02, 1.6, 0.1, 0, 0.001, 20],
        ]
        write_rows(folder / f"{name}.csv", columns, rows)
    columns = ["preset", "task", "n_envs", "plan", "update", "env", "record", "step", "env_steps_per_s"]
    loop = ["best", "cheetah-run", 16, 15, 20, 1, 0.25, 20, 3333.3, "an imaginary GPU"]
    write_rows(folder / "loop.csv", [*columns, "device"], [loop])
    facts = {
        "gpu": "an imaginary GPU", "driver": "1.0", "versions": {"torch": "2.11.0"}, "date": "2026-01-01",
        "commit": "abc", "rates": {"bytes": 4e12},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(facts))


def write_quick(folder: Path, results: Path) -> None:
    shutil.copytree(results / "regression" / "gd", folder / "results" / "regression" / "quick,method=gd")
    cartpole = folder / "results" / "cartpole"
    shutil.copytree(results / "cartpole" / "d2-tau1", cartpole / "quick")
    names = ["controller", "states", "draw", "trajectories", "cost"]
    write_rows(cartpole / "shipped.csv", names, [["cartpole-8", "validation", 0, 1000, -10.123]])
    names = ["seed", "return", "length"]
    write_rows(folder / "results" / "dmc" / "cheetah-run.csv", names, [[0, 612.5, 250]])
    shutil.copy(results / "cartpole" / "videos" / "cartpole.mp4", folder / "cartpole.mp4")


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Sources:
    """Folders that a test may change as long as it puts back what it found."""
    root = tmp_path_factory.mktemp("sources")
    results = root / "results"
    shutil.copytree(ROOT / "lab" / "results" / "regression", results / "regression")
    shutil.copytree(ROOT / "lab" / "results" / "cartpole", results / "cartpole")
    shutil.copytree(ROOT / "benchmarks" / "results", root / "benchmarks" / "results")
    write_trainings(results)
    write_evaluations(results)
    write_planning(results)
    (results / "dmc" / "videos").mkdir()
    shutil.copy(results / "cartpole/videos/cartpole.mp4", results / "dmc/videos/cheetah_run.mp4")
    gpu = root / "lab" / "benchmarks" / "gpu" / "results"
    gpu.mkdir(parents=True)
    write_gpu_benchmark(gpu)
    shutil.copytree(ROOT / "lab" / "docs", root / "lab" / "docs")
    write_quick(root / "quick", results)
    return Sources(results, root, root / "quick")
