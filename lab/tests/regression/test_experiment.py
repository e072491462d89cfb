"""The regression study: its parts on known answers, and the tiny preset from end to end."""

import csv
import math
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from dcem import Argmin, _compile, capture
from dcem_lab import cli
from dcem_lab.regression.energy import EnergyNetwork
from dcem_lab.regression.experiment import (
    PRESETS,
    TABLES,
    Config,
    dataset,
    iterates,
    keep,
    learn,
    nearest_minimum,
    predict,
    run,
    solver_for,
)
from dcem_lab.runs import Interrupted, Run, RunError, export_run, read_record, read_records
from dcem_lab.training.members import MemberAdam

TINY = Config(**PRESETS["tiny"])


def build(config: Config, device: str = "cpu") -> tuple[Argmin, MemberAdam, torch.Generator]:
    energy = EnergyNetwork(1, 1, config.hidden, members=config.seeds).to(device)
    optimizer = MemberAdam(list(energy.parameters()), config.lr, config.clip).to(device)
    return Argmin(energy, solver_for(config), 1), optimizer, torch.Generator(device).manual_seed(0)


def read(path: Path) -> tuple[list[str], list[list[float]]]:
    columns, *rows = csv.reader(path.read_text().splitlines())
    return columns, [[float(value) for value in row] for row in rows]


# End to end


@pytest.mark.parametrize("method", ["dcem", "gd"])
def test_the_tiny_preset(method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "regression", "preset=tiny", f"method={method}", "tensorboard=false"]) == 0
    [folder] = Path("runs/regression").glob("tiny*/seed0")
    assert cli.main(["export", str(folder)]) == 0
    for seed in (0, 1):
        results = Path("lab", "results", *folder.parts[-3:-1], f"seed{seed}")
        names = [f"{table}.csv" for table in ("curve", *TABLES)]
        assert sorted(path.name for path in results.iterdir()) == sorted([*names, "run.json"])
        assert read_record(results)["config"]["method"] == method
        columns, curve = read(results / "curve.csv")
        assert columns == ["step", "seconds", "mse", "lr"]
        assert [row[0] for row in curve] == [0, 4, 8, 12]
        _, errors = read(results / "iterations.csv")
        columns, predictions = read(results / "predictions.csv")
        assert columns == ["x", "y", "1", "2", "3", "4", "5"]
        if method == "gd":  # every solve is the same: one draw has the mean error of all
            for t, error in errors:
                own = statistics.fmean((row[1 + int(t)] - row[1]) ** 2 for row in predictions)
                assert own == pytest.approx(error, rel=1e-4)
        _, minima = read(results / "minima.csv")
        assert [row[2] for row in minima] == [row[4] for row in predictions]
        columns, surface = read(results / "energy.csv")
        assert len(columns) == 82
        assert len(surface) == 111
        assert [surface[0][0], surface[-1][0]] == [-7, 4]


@pytest.mark.parametrize("stop_at", [1, 7])
def test_a_resumed_run_ends_as_an_unbroken_one(stop_at, tmp_path, monkeypatch):
    with Run(tmp_path / "whole", TINY, experiment="regression", tensorboard=False) as whole:
        run(TINY, whole)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "should_stop", property(lambda self: self.step == stop_at))
        with pytest.raises(Interrupted), Run(tmp_path / "broken", TINY, tensorboard=False) as broken:
            run(TINY, broken)
    with pytest.raises(RunError, match="is interrupted; only a finished run has been evaluated"):
        export_run(tmp_path / "broken", tmp_path, keep=keep)
    with Run(tmp_path / "broken", TINY, tensorboard=False) as broken:
        assert broken.step == stop_at
        run(TINY, broken)
    for path in (tmp_path / "whole").glob("*.csv"):
        assert path.read_text() == (tmp_path / "broken" / path.name).read_text()
    logs = [read_records(tmp_path / name / "log.jsonl") for name in ("whole", "broken")]
    assert [{**row, "seconds": 0} for row in logs[0]] == [{**row, "seconds": 0} for row in logs[1]]
    assert read_record(tmp_path / "broken")["status"] == "finished"


@pytest.mark.parametrize("method", ["dcem", "gd"])
def test_training_lowers_the_error(method, tmp_path):
    config = Config(
        method=method, seeds=2, hidden=(32, 32), points=10, batch=10, n_samples=20, n_elite=4,
        n_iters=5, updates=100, updates_per_point=1, lr=5e-3, eval_every=100, eval_iters=5, eval_draws=1,
    )  # fmt: skip
    with Run(tmp_path, config, tensorboard=False) as folder:
        run(config, folder)
    first, last = (read_records(tmp_path / "log.jsonl")[i] for i in (0, -1))
    for seed in (0, 1):
        assert last[f"mse_{seed}"] < 0.6 * first[f"mse_{seed}"]


@pytest.mark.parametrize("changes", [{}, {"method": "gd", "n_iters_spread": 1}], ids=["dcem", "gd"])
def test_compiled_solves_give_the_same_losses(changes, tmp_path, monkeypatch):
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(_compile, "HOW", {"backend": counter})
    logs = []
    for compile in (False, True):
        config = replace(TINY, **changes, updates=8, compile=compile)
        torch.manual_seed(0)
        with Run(tmp_path / str(compile), config, tensorboard=False) as folder:
            run(config, folder)
        logs.append(read_records(tmp_path / str(compile) / "log.jsonl"))
        assert (counter.frame_count > 0) == compile
    for eager, compiled in zip(*logs, strict=True):
        assert compiled | {"seconds": 0} == pytest.approx(eager | {"seconds": 0}, rel=1e-4)


def test_a_cosine_takes_the_learning_rate_to_zero(tmp_path):
    config = replace(TINY, schedule="cosine", lr=0.01, updates=12, eval_every=3)
    with Run(tmp_path, config, tensorboard=False) as folder:
        run(config, folder)
    rates = [row["lr_1"] for row in read_records(tmp_path / "log.jsonl")]
    expected = [0.01 * math.cos(math.pi * part / 2) ** 2 for part in (0, 0.25, 0.5, 0.75)]
    assert rates == pytest.approx([*expected, expected[-1]])


# Parts


def test_the_data():
    x, y = dataset(100)
    assert x.shape == y.shape == (100, 1)
    assert x[0] == 0
    assert x[-1] == pytest.approx(2 * math.pi)
    assert y[25].item() == pytest.approx(x[25].item() * math.sin(x[25].item()))


@pytest.mark.parametrize("preset", ["dcem", "gd", "gd-starts", "gd-steps"])
def test_members_do_not_mix(preset):
    """Member 0 does the same whatever member 1 is trained on."""
    config = Config(**{**PRESETS[preset], "seeds": 2, "hidden": (8, 8)})
    x = torch.tensor([[[1.0]], [[2.0]]])
    parameters = []
    for target in (-9.0, 9.0):
        torch.manual_seed(0)
        model, optimizer, generator = build(config)
        for _ in range(3):
            learn(config, model, optimizer, generator, x, torch.tensor([[[1.0]], [[target]]]))
        parameters.append(list(model.parameters()))
    for a, b in zip(*parameters, strict=True):
        assert torch.equal(a[0], b[0])
    assert not torch.equal(parameters[0][2][1], parameters[1][2][1])


def test_a_random_number_of_steps_is_taken():
    config = Config(**PRESETS["gd-steps"], seeds=4, hidden=(8, 8))
    model, _, generator = build(config)
    x = torch.rand(4, 3, 1)
    path = iterates(model, x, 15, generator)  # (S, 15, 3)
    taken = set()
    for _ in range(60):
        prediction = predict(config, model, generator, x).mT  # (S, 1, 3)
        same = (path == prediction).all(-1)
        assert same.any(-1).all()
        taken |= set((same.int().argmax(-1) + 1).tolist())
    assert taken == set(range(5, 16))


def test_iterates_are_the_answers_of_shorter_solves():
    model, _, generator = build(Config(method="gd", seeds=2, hidden=(8, 8)))
    x = torch.rand(2, 3, 1)
    path = iterates(model, x, 12, generator)
    for t in (1, 10, 12):
        torch.testing.assert_close(path[:, t - 1], model.solve(x, n_iters=t).x.squeeze(-1))


@pytest.mark.usefixtures("double")
def test_nearest_minimum_of_known_surfaces():
    x = torch.linspace(0.5, 2, 23).expand(2, -1).unsqueeze(-1)
    prediction = torch.stack([torch.full((23,), 3.0), torch.full((23,), -0.1)])

    def wells(x, y):  # at ±x
        return (y.square() - x.square()).square().squeeze(-1)

    def slope(x, y):
        return (x * y).squeeze(-1)

    found = nearest_minimum(wells, x, prediction)
    torch.testing.assert_close(found, torch.stack([x[0, :, 0], -x[1, :, 0]]), atol=1e-5, rtol=0)
    assert nearest_minimum(slope, x, prediction).isnan().all()


def test_every_preset_is_a_config():
    for changes in PRESETS.values():
        Config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"updates": 0}, "updates must be at least 1, got 0"),
        ({"tau": -1.0}, "tau must be at least 0, got -1.0"),
        ({"n_elite": 101}, "n_elite must be at most n_samples, got 101"),
        ({"n_iters_spread": 10}, "n_iters_spread must be below n_iters, got 10"),
        ({"eval_iters": 9}, "eval_iters must be at least n_iters, got 9"),
        ({"lr": math.nan}, "lr must be above 0, got nan"),
        ({"method": "sgd"}, "method must be one of dcem, gd, got 'sgd'"),
    ],
)
def test_says_what_is_wrong(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**changes)


@pytest.mark.gpu
@pytest.mark.parametrize("preset", ["gd", "dcem", "gd-steps"])
def test_a_captured_update_is_the_eager_one(preset):
    config = Config(**{**PRESETS[preset], "seeds": 2, "hidden": (16, 16)})
    x, y = (torch.rand(2, 1, 1, device="cuda") for _ in range(2))
    losses, parameters = [], []
    for captured in (True, False):
        torch.manual_seed(0)
        model, optimizer, generator = build(config, "cuda")
        eager = partial(learn, config, model, optimizer, generator)
        changes = [*model.parameters(), *optimizer.buffers()]
        update = capture(eager, changes=changes, generator=generator) if captured else eager
        before = eager(x, y)
        for _ in range(20):
            update(x, y)
        losses.append((before, eager(x, y)))
        parameters.append(list(model.parameters()))
    for before, after in losses:
        assert (after < before).all()
    if preset == "gd":  # no noise
        for a, b in zip(*parameters, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
