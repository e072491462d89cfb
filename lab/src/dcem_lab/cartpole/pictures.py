"""Data for the cartpole's figures, as CSVs: samples of a search, and cost surfaces of latent spaces.

`write` needs the decoders of a run of each temperature; the report only needs the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from dcem import MPC
from dcem.systems.cartpole import Cartpole
from dcem_lab.cartpole.baselines import PAPER, PCA, STRONG, expert_controller, expert_plans, grid_points
from dcem_lab.cartpole.scores import load_decoder
from dcem_lab.cartpole.shipped import with_the_papers_search
from dcem_lab.cartpole.train import HORIZON, Member, validation_states
from dcem_lab.runs.files import write_csv

FOLDER = "pictures"
STARTS = 3  # states whose surfaces are drawn
SHOWN = 50  # samples per iteration
SIZE = 61  # points along a side of a surface


@torch.no_grad()
def write(
    run_folders: Sequence[Path | str], results: Path | str = "lab/results/cartpole", plans: int = 4000
) -> Path:
    """Write pictures/{cem,dcem}_samples.csv and surface_<latent space>_<state>.csv; returns their folder.

    run_folders: finished grids with latent dimension 2 at τ = 1, and optionally other temperatures.
    """
    folder = Path(results) / FOLDER
    decoders: dict[str, Any] = {}
    for tau in (1.0, 0.1, 0.0):
        name = Member(2, tau, 0).name
        for run_folder in map(Path, run_folders):
            if (run_folder / "decoders" / f"{name}-best.safetensors").exists():
                decoders[f"tau{tau:g}"] = load_decoder(f"{name}-best", run_folder / "decoders")
    decoders["pca"] = PCA(expert_plans(PAPER, plans, seed=0), 2)
    states = validation_states()
    states = states[states[:, 2] < -0.7][:STARTS]  # the first with the pole well below the horizon
    for name, decoder in decoders.items():
        for i, state in enumerate(states):
            write_surface(folder / f"surface_{name}_{i}.csv", surface(decoder, state))
    write_samples(folder / "cem_samples.csv", expert_controller(STRONG), states[0])
    write_samples(folder / "dcem_samples.csv", with_the_papers_search(decoders["tau1"], 1.0), states[0])
    return folder


def surface(decoder: Any, state: Tensor) -> Tensor:
    """C(z) (SIZE, SIZE) from a state (5,): the first number of z down, the second across."""
    cost = MPC(Cartpole(), HORIZON, decoder=decoder).total_cost(grid_points(SIZE), state)
    return cost.unflatten(0, (SIZE, SIZE))


def write_surface(path: Path, cost: Tensor) -> None:
    axis = torch.linspace(-1, 1, SIZE).tolist()
    rows = [[z, *row] for z, row in zip(axis, cost.tolist(), strict=True)]
    write_csv(path, ["z1", *(f"{z:.4g}" for z in axis)], rows, digits=5)


def write_samples(path: Path, mpc: MPC, state: Tensor) -> None:
    """Some samples of every iteration of a search, and its mean: point, actions and cost."""
    plan = mpc(state, generator=Generator().manual_seed(0), trace=True)
    columns = ["iteration", "kind", "cost", "sampled"]
    points = [f"z{i}" for i in range(mpc.search_dim)] if mpc.decoder is not None else []
    rows: list[list[object]] = []
    for record in plan.trace or ():
        shown = torch.cat([record.samples[:SHOWN], record.mean.unsqueeze(0)])
        actions = mpc.decode(shown, state).flatten(1)
        costs = mpc.total_cost(shown, state)
        kinds = ["sample"] * SHOWN + ["mean"]
        sampled = (record.iteration + 1) * record.samples.shape[-2]  # up to the end of this iteration
        for kind, x, u, cost in zip(kinds, shown.tolist(), actions.tolist(), costs.tolist(), strict=True):
            rows.append([record.iteration + 1, kind, cost, sampled, *(x if points else []), *u])
    write_csv(path, [*columns, *points, *(f"u{t}" for t in range(mpc.horizon))], rows, digits=5)
