"""Results whose numbers are known, laid out as under lab/results."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dcem_lab.cartpole.numbers import PAPER_EXPERT, PAPER_FACTORS, STRONG

X = np.linspace(0, 2 * np.pi, 20)
TARGET = X * np.sin(X)
RECORD = {
    "command": "dcem train some-experiment preset=some run_dir=runs/a",
    "machine": {"cpu": "a CPU", "cores": 16, "gpu": "a GPU"},
    "wall_seconds": 244,
    "versions": {"torch": "2.11.0"},
    "started": "2026-01-02",
}


def write_rows(path: Path, columns: Sequence[str], rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *np.asarray(rows, object).tolist()])


def write_record(folder: Path, **facts) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({**RECORD, **facts}), encoding="utf-8")


# Regression


def write_regression(root: Path, name: str, growth: float, at_minimum: float, seeds: int = 3) -> None:
    """A variant with errors 1e-4 · growth^(t - 10) after t iterations and that share of answers at minima."""
    t = np.arange(1, 31)
    for k in range(seeds):
        folder = root / "regression" / name / f"seed{k}"
        error = (k + 1) * 1e-4 * growth ** (t - 10.0)
        predictions = TARGET + np.sqrt(error)[:, None]
        minima = predictions[9] + np.where(np.arange(20) < 20 * at_minimum, 0.04, 0.06)
        steps = np.arange(0, 1001, 10)
        y, x = np.linspace(-7, 4, 12), np.linspace(0, 2 * np.pi, 9)
        energy = (y[:, None] - x * np.sin(x)) ** 2
        curve = np.stack([steps, steps, 1 / (1 + steps), np.full(101, 1e-3)], 1)
        write_rows(folder / "curve.csv", ["step", "seconds", "mse", "lr"], curve)
        write_rows(folder / "iterations.csv", ["iterations", "mse"], np.stack([t, error], 1))
        table = np.column_stack([X, TARGET, *predictions])
        write_rows(folder / "predictions.csv", ["x", "y", *map(str, t)], table)
        table = np.column_stack([X, TARGET, predictions[9], minima])
        write_rows(folder / "minima.csv", ["x", "y", "prediction", "minimum"], table)
        write_rows(folder / "energy.csv", ["y", *map(str, x)], np.column_stack([y, energy]))
        write_record(folder, config={"n_iters": 10, "method": "dcem", "tau": 1.0})


# Cartpole

SCORES = ["controller", "states", "draw", "trajectories", "cost"]


def write_cartpole_variant(folder: Path, factor: float) -> None:
    """Three seeds whose best validation costs are 0.99, 1 and 1.01 times `factor` times the expert's."""
    columns = ["step", "seconds", "validation_cost", "best_cost", "train_cost", "grad_norm", "lr"]
    for seed, scale in enumerate((0.99, 1.0, 1.01)):
        best = scale * factor * PAPER_EXPERT
        rows = [[100 * i, i, best + 5 / i, best + 5 / i, best + 1, 1, 1e-3] for i in range(1, 100)]
        rows.append([10_000, 100, best, best, best, 1, 1e-3])
        write_rows(folder / f"seed{seed}" / "curve.csv", columns, rows)
        write_record(folder / f"seed{seed}", config={"states_per_update": 8})


def write_cartpole(root: Path) -> None:
    """All variants; those of τ = 1 and of two dimensions are better than the paper's."""
    home, scores = root / "cartpole", []
    for (dim, tau), known in PAPER_FACTORS.items():
        better = tau == 1 or dim == 2
        write_cartpole_variant(home / f"d{dim}-tau{tau:g}", known + (0.05 if better else -0.3))
        for seed in range(3):
            name = f"d{dim}-tau{tau:g}-seed{seed}"
            kinds = ("validation", "fresh")
            scores += [[name, kind, draw, 1000, -9.0 - draw] for kind in kinds for draw in (0, 1)]
    write_cartpole_variant(home / "one-state-d2-tau1", 1.0)
    write_rows(home / "reevaluation.csv", SCORES, scores)
    experts = {
        "expert-100-10-30": (-9.0, 3000), STRONG: (-10.0, 10_000), "pca-2": (-9.5, 40_000),
        "autoencoder-2-cem-seed0": (-8.5, 1000), "autoencoder-2-dcem-seed0": (-4.5, 1000),
    }  # fmt: skip
    rows = [[name, kind, 0, n, c] for name, (c, n) in experts.items() for kind in ("validation", "fresh")]
    write_rows(home / "baselines" / "seed0" / "scores.csv", SCORES, rows)
    write_record(home / "baselines" / "seed0", command="dcem train cartpole-baselines", wall_seconds=386)
    closed = [
        ["cartpole-8", 1000, 100, 60, 90, 1, 0.25, -3.25],
        ["expert-100-10-30", 3000, 100, 60, 98, 97, 0.5, -8.5],
    ]
    columns = ["controller", "trajectories", "states", "steps", "get_up", "stay_up", "seen"]
    columns.append("median_cost_a_step")
    write_rows(home / "closed_loop.csv", columns, closed)
    write_pictures(home / "pictures")


def write_pictures(folder: Path) -> None:
    """Surfaces with one minimum, and searches of ten iterations that close in."""
    axis = np.linspace(-1, 1, 9)
    cost = (axis[:, None] - 0.25) ** 2 + (axis + 0.5) ** 2 - 9
    for name in ("tau1", "tau0.1", "tau0", "pca"):
        table = np.column_stack([axis, cost])
        write_rows(folder / f"surface_{name}_0.csv", ["z1", *map(str, axis)], table)
    for method, points in (("cem", []), ("dcem", ["z0", "z1"])):
        rows = [
            [t, kind, -t - 0.25, 10 * t, *[place / t] * len(points), *np.linspace(-t, t, 20)]
            for t in range(1, 11)
            for kind, place in (("sample", -0.8), ("sample", 0.9), ("mean", 0.1))
        ]
        names = ["iteration", "kind", "cost", "sampled", *points, *(f"u{i}" for i in range(20))]
        write_rows(folder / f"{method}_samples.csv", names, rows)


# The control suite

QUESTIONS = {
    "controllers": {
        "full-cem": "full CEM",
        "latent-dcem": "latent DCEM",
        "latent-dcem-ppo": "latent DCEM + PPO",
        "full-cem-value": "plans with a value",
    },
    "planet": [
        {"run": "planet/cheetah-run-best", "question": "to compare with", "changed": "", "charted": True},
        {"run": "planet/cheetah-run-best-mse", "question": "squared errors?", "changed": "model.loss=mse"},
    ],
    "paper-preset": [
        {"run": "planet/cheetah-run-paper", "question": "to compare with", "changed": "", "charted": True},
        {"run": "planet/cheetah-run-paper-gelu", "question": "GELU?", "changed": "model.activation=gelu"},
    ],
    "agent": [
        {"run": "agent/cheetah-run", "question": "to compare with", "changed": "", "charted": True},
        {"run": "agent/cheetah-run-two-hot", "question": "bins?", "changed": "value.values=two-hot"},
    ],
    "finetuned": [
        {"task": "cheetah-run", "before": "latent-dcem", "after": "latent-dcem-ppo", "training": "seed 0"}
    ],
}


def write_questions(results: Path) -> None:
    results.mkdir(parents=True, exist_ok=True)
    (results / "questions.json").write_text(json.dumps(QUESTIONS), encoding="utf-8")


def write_trainings(results: Path) -> None:
    """Two seeds of each task, whose evaluations rise to 600 and 900, and phase 2 of one, stopped early."""
    columns = ["env_steps", "updates", "seconds", "return", "eval_mean", "eval_median"]
    for task, top in (("cheetah-run", 600), ("walker-walk", 900)):
        for seed in range(2):
            folder = results / "planet" / f"{task}-best" / f"seed{seed}"
            rows = [
                [steps, steps // 4, steps / 100, "", top * steps / 2e6 + seed, top * steps / 2e6]
                for steps in range(100_000, 2_000_001, 100_000)
            ]
            write_rows(folder / "curve.csv", columns, [[50_000, 1, 1, 3.5, "", ""], *rows])
            write_record(folder, seed=seed, wall_seconds=7300)
    latent = results / "embed" / "cheetah-run-T5" / "seed0"
    rows = [
        [20_000, 10, 60, "", 222, 211, -7.5],
        [40_000, 20, 120, "", 321, 345, -8.25],
        [44_000, 22, 130, 300, "", "", ""],
    ]
    write_rows(latent / "curve.csv", [*columns, "decoder_cost"], rows)
    write_record(latent, command="dcem train embed from=a", wall_seconds=131, step=44, steps=500)


EPISODES = ["task", "controller", "run", "samples", "iterations", "episode_seed", "total"]


def write_evaluations(results: Path) -> None:
    """101 episodes of each controller, spread evenly around a known median."""
    medians = {
        ("cheetah-run", "full-cem"): 701,
        ("cheetah-run", "latent-dcem"): 900,
        ("cheetah-run", "full-cem-100"): 500,
        ("walker-walk", "full-cem"): 700,
    }
    rows = [
        [task, controller, "run0", 1000, 10, episode, total]
        for (task, controller), median in medians.items()
        for episode, total in enumerate((median + np.linspace(-50, 50, 101)).tolist())
    ]
    write_rows(results / "dmc" / "evaluations.csv", EPISODES, rows)


# By task and variant, what each seed reaches after 500,000 steps.
AGENTS = {
    ("cheetah-run", ""): (900, 700),
    ("hopper-hop", ""): (400, 500, 300),
    ("cheetah-run", "-two-hot"): (650,),
}
# By agent, task and steps, what each of its seeds returned; B published means alone.
PEERS = {
    ("TD-MPC2", "cheetah-run"): {
        100_000: "518 520 519",
        500_000: "756 760 758",
        1_000_000: "844",
        2_000_000: "860",
    },
    ("TD-MPC2", "hopper-hop"): {100_000: "10 20 30", 500_000: "200 220 210"},
    ("A", "cheetah-run"): {100_000: "300 310", 500_000: "810 830"},
    ("B", "cheetah-run"): {100_000: "200", 500_000: "600"},
    ("B", "hopper-hop"): {100_000: "100", 500_000: "450"},
    ("C", "cheetah-run"): {100_000: "1 2", 500_000: "3 4"},
}


def write_agents(results: Path) -> None:
    """Agents with a value, whose returns rise in proportion to their steps, and published ones."""
    columns = ["env_steps", "updates", "seconds", "return", "eval_mean", "eval_median", "value"]
    for (task, variant), tops in AGENTS.items():
        for seed, top in enumerate(tops):
            folder = results / "agent" / f"{task}{variant}" / f"seed{seed}"
            rows = [
                [steps + 48, steps // 4, steps / 100, "", top * steps / 5e5, top * steps / 5e5, 3]
                for steps in range(50_000, 500_001, 50_000)
            ]
            write_rows(folder / "curve.csv", columns, rows)
            write_record(folder, seed=seed, wall_seconds=600, config={"task": task})
    rows = [
        [task, "full-cem-value", f"{task}-value/seed{seed}", 152, 6, episode, top + episode - 20]
        for (task, variant), tops in AGENTS.items()
        for seed, top in enumerate(tops)
        for episode in range(41)
        if not variant
    ]
    write_rows(results / "agent" / "evaluations.csv", EPISODES, rows)
    published = [[*key, steps, returns] for key, found in PEERS.items() for steps, returns in found.items()]
    write_rows(results / "agent" / "peers.csv", ["agent", "task", "env_steps", "returns"], published)
    about = {"TD-MPC2": {"repository": "https://example.org/tdmpc2", "commit": "abc", "files": "results"}}
    (results / "agent" / "peers.json").write_text(json.dumps(about), encoding="utf-8")


def write_planning(results: Path) -> None:
    """On a CPU alone."""
    names = ["task", "controller", "weights", "samples", "iterations", "trajectories", "ms_1", "ms_16",
             "kind", "device", "threads", "load"]  # fmt: skip
    rows = [
        ["cheetah-run", "full-cem", "cheetah-run", 1000, 10, 10_000, 2345.6, 34567.8, "cpu", "a CPU", 2, 0.5],
        ["cheetah-run", "full-cem-100", "cheetah-run", 100, 10, 1000, 77.7, 888.8, "cpu", "a CPU", 2, 0.5],
    ]
    write_rows(results / "dmc" / "planning.csv", names, rows)


# Benchmarks


def write_cpu_benchmark(folder: Path) -> None:
    passes = [f"{name}{what}" for name in ("forward", "forward+backward") for what in
              (" ms", " ratio", " ratio q1", " ratio q3")]  # fmt: skip
    for name in ("lml", "dcem", "hard", "control"):
        rows = [
            ["a case", "ours", 1.5, 1, 1, 1, 4.5, 1, 1, 1, ""],
            ["a case", "theseus", 30.0, 20, 19, 21, 112.25, 25, 24, 26, ""],
            ["a case", "a peer", "", "", "", "", "", "", "", "", "cannot"],
        ]
        write_rows(folder / f"{name}.csv", ["case", "contender", *passes, "failure"], rows)
    facts = {
        "cpu": "a CPU", "threads": 1, "cores": 2, "date": "2026-01-01", "commit": "abc", "rounds": 5,
        "versions": {"torch": {"torch": "2.11.0"}},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")


def write_layers_benchmark(folder: Path) -> None:
    columns = ["problem", "contender", "cosine", "relative error", "excess", "found", "ms, B=1", "ms, B=64",
               "MB", "failures", "instances"]  # fmt: skip
    rows = [
        ["pendulum", "DCEM, implicit", 1, 0.0321, 1e-9, 0.97, 12.5, 130, 20, 0, 1000],
        ["pendulum", "a peer", 0.5, 0.9, 0.1, 0.4, 30, "", "", 3, 12],
    ]
    write_rows(folder / "layers" / "results" / "layers.csv", columns, rows)
    columns = ["operator", "seed", "temperature", "cost", "cost on fresh states",
               "updates without a finite gradient", "CPU ms per update", "failure"]  # fmt: skip
    rows = [
        ["dcem.lml", 0, 0.2, -6.5, -6, 0, 36, ""],
        ["dcem.lml", 1, 0.2, -6.50, -6, 1, 38, ""],
        ["another", 0, "", "", "", "", "", "it broke"],
    ]
    write_rows(folder / "embedding" / "results" / "embedding.csv", columns, rows)


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
    (folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")
