"""What the cartpole's latent spaces are compared with, and how: at the smallest size."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dcem.control import Trajectory, rollout
from dcem.systems.cartpole import Cartpole
from dcem_lab import pretrained
from dcem_lab.cartpole import baselines, closed_loop, grid, pictures, shipped, train
from dcem_lab.cartpole.baselines import PAPER, PCA, Config, expert_plans, grid_cost, train_autoencoder
from dcem_lab.cartpole.scores import Score, read_scores, scores, trajectories, write_scores
from dcem_lab.runs import Run, export_run, read_record

TINY = Config(**baselines.PRESETS["tiny"])


@pytest.fixture(scope="module")
def grid_run(tmp_path_factory) -> Path:
    """A grid with full-sized latent dimension 2, trained for no time at all."""
    settings = {**grid.PRESETS["tiny"], "taus": (1.0,), "hidden": (256, 256, 256)}
    config = grid.Config(**settings, device="cpu")
    folder = tmp_path_factory.mktemp("grid")
    with Run(folder, config, tensorboard=False) as run:
        grid.run(config, run)
    return folder


def test_every_baseline_is_scored_and_exported(tmp_path):
    with Run(tmp_path / "run", TINY, experiment="cartpole-baselines", tensorboard=False) as run:
        baselines.run(TINY, run)
    [kept] = export_run(tmp_path / "run", tmp_path / "results", keep=baselines.keep)
    assert kept == tmp_path / "results" / "cartpole" / "baselines" / "seed0"
    rows = read_scores(kept / "scores.csv")
    names = {row.controller for row in rows}
    autoencoders = {"autoencoder-2-cem-seed0", "autoencoder-2-dcem-seed0"}
    assert names == {PAPER, "pca-2", "pca-2-strong"} | autoencoders
    assert {(row.states, row.draw) for row in rows if row.controller == PAPER} == {
        (states, draw) for states in ("validation", "fresh") for draw in (0, 1)
    }
    assert next(row.trajectories for row in rows if row.controller == PAPER) == 3000
    record = read_record(kept)
    assert record["status"] == "finished" and record["config"]["plans"] == 20


def test_scores_have_the_same_states_for_all_and_new_noise_for_each_draw():
    seen = []

    def first(states, generator):
        seen.append((states.clone(), torch.rand(1, generator=generator).item()))
        return states[:, 0]

    rows = list(scores("a", first, 7, draws=2, count=5))
    assert [row.states for row in rows] == ["validation"] * 2 + ["fresh"] * 2
    assert torch.equal(seen[0][0], train.validation_states(5)) and torch.equal(seen[1][0], seen[0][0])
    assert not torch.equal(seen[2][0], seen[3][0]) and not torch.equal(seen[2][0], seen[0][0])
    assert seen[0][1] == seen[2][1] != seen[1][1]
    list(scores("b", first, 7, draws=2, count=5))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(seen[:4], seen[4:], strict=True))
    assert rows[0].cost == pytest.approx(seen[0][0][:, 0].mean().item())


def test_written_scores_replace_those_of_the_same_controllers(tmp_path):
    path = tmp_path / "new" / "scores.csv"
    old = [Score("a", "fresh", 0, 10, 1.0), Score("b", "fresh", 0, 10, 0.1 + 0.2)]
    write_scores(path, old)
    write_scores(path, [Score("a", "fresh", 1, 10, 2.0)])
    assert read_scores(path) == [Score("a", "fresh", 1, 10, 2.0), old[1]]


def test_pca_spans_the_plans_it_was_made_from():
    plans = expert_plans(PAPER, 60, seed=0)
    assert plans.shape == (60, 20) and plans.abs().max() <= 100
    whole = PCA(plans, 20)
    codes = ((plans - whole.mean) @ whole.directions.mT - whole.middle) / whole.reach
    assert codes.abs().max() <= 1 + 1e-4
    torch.testing.assert_close(whole(codes).squeeze(-1), plans, atol=1e-2, rtol=1e-3)
    two = PCA(plans, 2)
    lost = (two(codes[:, :2]).squeeze(-1) - plans).square().sum()
    assert lost <= 1.01 * torch.linalg.svdvals(plans - plans.mean(0))[2:].square().sum()


def test_a_grid_is_searched_to_its_last_point():
    decoder = PCA(expert_plans(PAPER, 30, seed=0), 2)
    states = train.validation_states(3)
    found = grid_cost(decoder, 4)(states, torch.Generator())
    axis = torch.linspace(-1, 1, 4)
    for state, cost in zip(states, found, strict=True):
        each = [rollout(Cartpole(), state, decoder(torch.stack([a, b]))) for a in axis for b in axis]
        torch.testing.assert_close(cost, torch.stack(each).min(), rtol=1e-4, atol=1e-4)


def test_an_autoencoder_learns_to_reproduce_plans():
    """Plans on a line: one latent dimension has to do."""
    ramp = torch.linspace(-1, 1, 20)
    plans = torch.linspace(-80, 80, 50).unsqueeze(1) * ramp
    decoder = train_autoencoder(plans, 1, 0, replace(TINY, updates=150, batch=32))
    made = decoder(torch.linspace(-1, 1, 400).unsqueeze(1)).squeeze(-1)
    distance = torch.cdist(plans, made).amin(1) / plans.norm(dim=1).mean()
    assert distance.mean() < 0.1
    assert not any(parameter.requires_grad for parameter in decoder.parameters())


def test_best_decoders_are_scored_again(grid_run, tmp_path):
    config = json.loads((grid_run / "run.json").read_text())["config"]
    path = grid.reevaluate(grid_run, tmp_path, draws=1)
    rows = read_scores(path)
    assert len(rows) == len(config["latent_dims"]) * len(config["seeds"]) * 2
    assert {row.trajectories for row in rows} == {1000}


def test_an_interrupted_run_is_exported_as_far_as_it_came(grid_run, tmp_path):
    record = json.loads((grid_run / "run.json").read_text())
    copy = tmp_path / "cut"
    copy.mkdir()
    (copy / "log.jsonl").write_bytes((grid_run / "log.jsonl").read_bytes())
    (copy / "run.json").write_text(json.dumps(record | {"status": "interrupted", "step": 4, "steps": 6000}))
    [first, *_] = export_run(copy, tmp_path / "results", "one-state", grid.keep)
    assert first == tmp_path / "results" / "cartpole" / "one-state-d2-tau1" / "seed0"
    assert (read_record(first)["status"], read_record(first)["step"]) == ("interrupted", 4)


def test_the_best_of_a_grid_ships_by_name(grid_run, tmp_path):
    shipped.ship(grid_run, folder=tmp_path)
    assert pretrained.available(tmp_path) == ["cartpole-2", "cartpole-3"]
    info, _ = pretrained.load("cartpole-2", tmp_path)
    last = json.loads((grid_run / "log.jsonl").read_text().splitlines()[-1])
    costs = [last[f"d2-tau1-seed{seed}/best_cost"] for seed in (0, 1)]
    assert info["validation_cost"] == min(costs)
    assert info["member"]["seed"] == costs.index(min(costs))
    assert shipped.load("cartpole-2", tmp_path)(train.validation_states(2)).actions.shape == (2, 20, 1)


def test_a_grid_of_one_is_exported_and_ships(tmp_path):
    settings = train.SMALL | {"latent_dims": (2,), "taus": (1.0,), "seeds": (0,), "updates": 1}
    config = grid.Config(**settings, device="cpu")
    with Run(tmp_path / "run", config, tensorboard=False, experiment="cartpole-grid") as run:
        grid.run(config, run)
    [kept] = export_run(tmp_path / "run", tmp_path / "results", keep=grid.keep)
    header, row = (line.split(",") for line in (kept / "curve.csv").read_text().splitlines())
    shipped.ship(tmp_path / "run", "one", folder=tmp_path)
    cost = pretrained.describe("one", tmp_path)["validation_cost"]
    assert float(row[header.index("best_cost")]) == cost


@pytest.mark.slow
def test_the_only_dimension_of_a_grid_ships_under_the_name_itself(tmp_path):
    settings = train.SMALL | {"updates": 2, "validation_states": 1}
    loop = {"fresh": 0.5, "conditioned": True, "latent_dims": (3,), "taus": (1.0,), "seeds": (0, 1)}
    config = grid.Config(**settings, **loop, device="cpu")
    with Run(tmp_path / "run", config, tensorboard=False, experiment="cartpole-grid") as run:
        grid.run(config, run)
    shipped.ship(tmp_path / "run", "driver", folder=tmp_path)
    mpc = shipped.load("driver", tmp_path)
    assert mpc.decoder.state_dim == 5
    assert (mpc.solver.n_samples, mpc.solver.n_elite, mpc.solver.n_iters) == (100, 10, 10)
    rows = grid.drive(tmp_path / "run", tmp_path / "results").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [["d3-tau1-seed0", "1000"], ["d3-tau1-seed1", "1000"]]


@pytest.mark.parametrize(("dim", "at_most"), [(2, -10.3), (8, -10.5), (16, -10.4)])
def test_what_ships_plans_well(dim, at_most):
    """With noise of its own, on the validation states, at the cost of 1,000 sampled trajectories."""
    mpc = shipped.load(f"cartpole-{dim}")
    assert mpc.decoder.latent_dim == dim and mpc.solver.tau == 1
    assert mpc.solver.n_samples * mpc.solver.n_iters == 1000
    with torch.no_grad():
        cost = mpc(train.validation_states(), generator=torch.Generator().manual_seed(0)).cost
    assert cost.mean() <= at_most


def test_what_ships_for_the_closed_loop_holds_the_pole():
    """With a tenth of the trajectories of the strong expert."""
    mpc = shipped.load("cartpole-closed-loop")
    assert shipped.drives("cartpole-closed-loop") and trajectories(mpc) == 1000
    assert int(closed_loop.stays_up(closed_loop.drive(mpc, 10).states).sum()) >= 9


def test_pictures_are_written_for_the_latent_spaces_there_are(grid_run, tmp_path):
    folder = pictures.write([grid_run], tmp_path, plans=30)
    names = {path.name for path in folder.iterdir()}
    assert {"cem_samples.csv", "dcem_samples.csv", "surface_tau1_0.csv", "surface_pca_2.csv"} <= names
    header, *rows = (folder / "dcem_samples.csv").read_text().splitlines()
    assert header.split(",")[:6] == ["iteration", "kind", "cost", "sampled", "z0", "z1"]
    assert len(rows) == 10 * (pictures.SHOWN + 1)


def test_closed_loop_successes_are_counted(tmp_path):
    path = closed_loop.write(tmp_path, {"cartpole-2": shipped.load("cartpole-2")}, count=2)
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    assert header[5] == "stay_up" and [row[:3] for row in rows] == [["cartpole-2", "1000", "2"]]
    still = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]).expand(60, 3, 5).clone()
    still[50, 1, 2], still[59, 2, 0] = 0.9, 1.2
    assert closed_loop.stays_up(still).tolist() == [True, False, False]
    still[:, 2, 4] = 1.2  # faster than first states are
    driven = Trajectory(still, torch.zeros(59, 3, 1), torch.tensor([0.0, 2.0, 7.0]).expand(59, 3))
    figures = {"get_up": "3", "stay_up": "1", "seen": "0.667", "median_cost_a_step": "2"}
    assert closed_loop.figures(driven) == figures
