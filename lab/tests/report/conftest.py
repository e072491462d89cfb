"""Sources of a page with every section filled, all of it made up but for the docs and a film."""

import json
import shutil
from pathlib import Path

import pytest

import made_up
from dcem_lab.report.sources import Sources

ROOT = Path(__file__).parents[3]
FILM = ROOT / "lab" / "results" / "cartpole" / "videos" / "cartpole.mp4"


def write_quick(folder: Path) -> None:
    results = folder / "results"
    made_up.write_regression(results, "quick,method=gd", growth=1.8, at_minimum=0.1, seeds=1)
    made_up.write_cartpole_variant(results / "cartpole" / "quick", 1.0)
    shipped = [["cartpole-8", "validation", 0, 1000, -10.123]]
    made_up.write_rows(results / "cartpole" / "shipped.csv", made_up.SCORES, shipped)
    made_up.write_rows(results / "dmc" / "cheetah-run.csv", ["seed", "return", "length"], [[0, 612.5, 250]])
    shutil.copy(FILM, folder / "cartpole.mp4")


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Sources:
    """Folders that a test may change as long as it puts back what it found."""
    root = tmp_path_factory.mktemp("sources")
    results = root / "results"
    made_up.write_regression(results, "dcem", growth=1.0, at_minimum=0.95)
    made_up.write_regression(results, "gd", growth=1.8, at_minimum=0.1)
    made_up.write_regression(results, "gd-starts", growth=1.01, at_minimum=0.5)
    made_up.write_cartpole(results)
    made_up.write_questions(results)
    made_up.write_trainings(results)
    made_up.write_evaluations(results)
    made_up.write_planning(results)
    made_up.write_agents(results)
    for film in ("cartpole/videos/cartpole.mp4", "dmc/videos/cheetah-run.mp4", "dmc/videos/hopper-hop.mp4"):
        (results / film).parent.mkdir(exist_ok=True)
        shutil.copy(FILM, results / film)
    about = {"task": "cheetah-run", "experiment": "embed", "seed": 3, "total": 123.4}
    (results / "dmc" / "videos" / "cheetah-run.json").write_text(json.dumps(about), encoding="utf-8")
    about = {"task": "hopper-hop", "experiment": "agent", "controller": "full-cem-value", "total": 432.1}
    (results / "dmc" / "videos" / "hopper-hop.json").write_text(json.dumps(about), encoding="utf-8")
    made_up.write_cpu_benchmark(root / "benchmarks" / "results")
    made_up.write_layers_benchmark(root / "benchmarks")
    made_up.write_gpu_benchmark(root / "lab" / "benchmarks" / "gpu" / "results")
    shutil.copytree(ROOT / "lab" / "docs", root / "lab" / "docs")
    write_quick(root / "quick")
    return Sources(results, root, root / "quick")
