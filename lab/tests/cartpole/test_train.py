"""Training an action space for the cartpole, at the smallest size."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dcem import DCEM, MPC, Decoder, Gaussian
from dcem.systems.cartpole import Cartpole
from dcem_lab import pretrained
from dcem_lab.cartpole import grid as cartpole_grid
from dcem_lab.cartpole import train as cartpole
from dcem_lab.cartpole.train import Config, Member
from dcem_lab.runs import Interrupted, Run, export_run, load_checkpoint, read_record, read_records
from toy.training import figures

TINY = Config(**cartpole.PRESETS["tiny"], device="cpu")
LOOP = replace(TINY, fresh=0.3, conditioned=True, states_per_update=3, validation_states=2)
GRID = cartpole_grid.Config(**cartpole_grid.PRESETS["tiny"], device="cpu")
MEMBERS = cartpole.members_of(vars(GRID))


def train(module, config, folder: Path, time_limit: float | None = None) -> Path:
    with Run(folder, config, tensorboard=False, time_limit=time_limit) as run:
        module.run(config, run)
    return folder


@pytest.mark.parametrize(
    ("module", "config"),
    [(cartpole, TINY), (cartpole, replace(TINY, tau=0.0)), (cartpole, LOOP), (cartpole_grid, GRID)],
    ids=["one", "tau0", "closed-loop", "grid"],
)
def test_a_run_cut_into_pieces_equals_one_in_one_go(module, config, tmp_path):
    whole = train(module, config, tmp_path / "whole")
    pieces = tmp_path / "pieces"
    for _ in range(config.updates - 1):
        with pytest.raises(Interrupted):
            train(module, config, pieces, time_limit=1e-9)
    train(module, config, pieces)
    assert figures(pieces) == figures(whole)
    for name in pretrained.available(whole / "decoders"):
        ours, theirs = (pretrained.load(name, folder / "decoders")[1] for folder in (whole, pieces))
        for key, value in ours.items():
            assert torch.equal(value, theirs[key]), (name, key)


def test_the_best_decoder_is_the_one_of_the_best_validation(tmp_path):
    config = replace(TINY, updates=12, validate_every=1, lr=0.05)
    folder = train(cartpole, config, tmp_path)
    rows = read_records(folder / "log.jsonl")
    costs = [row["validation_cost"] for row in rows]
    assert rows[-1]["best_cost"] == min(costs) < costs[-1]
    for kind, cost in (("best", min(costs)), ("last", costs[-1])):
        settings, weights = pretrained.load(f"d2-tau1-seed0-{kind}", folder / "decoders")
        decoder = Decoder(**settings)
        decoder.load_state_dict(weights)
        stack = cartpole.DecoderStack([decoder])
        validate = cartpole.Validation(cartpole.controller(stack, [1.0], config), 1, config)
        assert validate().item() == pytest.approx(cost, rel=1e-5)
    saved = load_checkpoint(folder).tree["objects"]["tally"]
    assert saved["best_cost"].tolist() == [min(costs)]


def test_min_differentiation_sees_only_the_cost_at_the_answer(tmp_path):
    """τ = 0: the gradient is that of the cost at a fixed ẑ."""
    config = replace(TINY, tau=0.0)
    stack = cartpole.DecoderStack([cartpole.new_decoder(Member(2, 0.0, 0), config)])
    mpc = cartpole.controller(stack, [0.0], config)
    states = cartpole.validation_states(3).unsqueeze(0)
    plan = mpc(states)
    assert not plan.latent.requires_grad
    at_answer = mpc.total_cost(plan.latent.unsqueeze(-2), states).sum()
    for ours, theirs in zip(
        torch.autograd.grad(plan.cost.sum(), stack.parameters()),
        torch.autograd.grad(at_answer, stack.parameters()),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_grid_is_exported_member_by_member(tmp_path):
    folder = train(cartpole_grid, GRID, tmp_path / "run")
    written = export_run(folder, tmp_path / "results", keep=cartpole_grid.keep)
    assert len(written) == len(MEMBERS) == 8
    for path, member in zip(written, MEMBERS, strict=True):
        assert path == tmp_path / "results" / "cartpole" / member.variant / f"seed{member.seed}"
        rows = list(csv.DictReader((path / "curve.csv").read_text().splitlines()))
        assert [int(row["step"]) for row in rows] == [3, 6]
        logged = read_records(folder / "log.jsonl")[1][f"{member.name}/validation_cost"]
        assert float(rows[1]["validation_cost"]) == logged
        record = read_record(path)
        assert record["member"] == {"latent_dim": member.latent_dim, "tau": member.tau, "seed": member.seed}


@pytest.mark.parametrize(
    ("config", "field"),
    [(Config, "latent_dim"), (Config, "updates"), (Config, "n_elite"), (cartpole_grid.Config, "taus")],
)
def test_a_bad_setting_is_named(config, field):
    with pytest.raises(ValueError, match=field):
        config(**{field: (0.0, 1.0) if field == "taus" else 0})


def test_validation_states_are_the_published_ones():
    """CEM on all 20 actions with N=1000, k=100, T=10 costs about -8.6 on them; other draws differ by 0.5."""
    solver = DCEM(
        n_samples=1000, n_elite=100, n_iters=10, tau=0, distribution=Gaussian(100.0, estimator="likelihood")
    )
    with torch.no_grad():
        cost = MPC(Cartpole(), 20, -100.0, 100.0, solver=solver)(cartpole.validation_states()).cost
    assert cost.mean().item() == pytest.approx(-8.6, abs=0.15)
