"""The pretrained cartpole controllers by name: the best per latent dimension, and one for closed loop."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from dcem import MPC, Decoder
from dcem_lab import pretrained
from dcem_lab.cartpole import train as cartpole
from dcem_lab.cartpole.scores import load_decoder
from dcem_lab.cartpole.train import Member
from dcem_lab.pretrained import FOLDER
from dcem_lab.runs import RunError, read_record, read_records
from dcem_lab.runs.folder import LOG
from dcem_lab.runs.record import RECORD

EXPERIMENTS = ("cartpole", "cartpole-grid")
"""Experiments whose runs have decoders for `ship`."""


def load(name: str, folder: Path | str = FOLDER) -> MPC:
    """What `ship` saved: 'cartpole-2', 'cartpole-8', 'cartpole-16' or 'cartpole-closed-loop'.

    >>> load("cartpole-2")(cartpole.validation_states(3)).actions.shape
    torch.Size([3, 20, 1])
    """
    info, weights = pretrained.load(name, folder)
    if info.get("experiment") != "cartpole":
        raise pretrained.PretrainedError(
            f"{name!r} must be a controller of the cartpole, got one of {info.get('experiment')!r}"
        )
    decoder = Decoder(**info["decoder"])
    decoder.load_state_dict(weights)
    return with_the_papers_search(decoder, info["member"]["tau"])


def with_the_papers_search(decoder: Decoder, tau: float) -> MPC:
    """Embedded control: DCEM with N=100, k=10, T=10, even if training used a smaller search."""
    return cartpole.controller(decoder, [tau], cartpole.Config(compile=False, device="cpu"))


def drives(run_or_name: Path | str) -> bool:
    """Was this run, or the pretrained controller of this name, trained on the states of its closed loop?"""
    if (Path(run_or_name) / RECORD).exists():
        training = read_record(run_or_name)["config"]
    else:
        training = pretrained.describe(str(run_or_name)).get("training", {})
    return bool(training.get("fresh", 1) < 1)


def is_one(run_or_name: Path | str) -> bool:
    """Is this the name of a pretrained cartpole controller, or a run of `dcem train cartpole`?"""
    if (Path(run_or_name) / RECORD).exists():
        return bool(read_record(run_or_name)["experiment"] == "cartpole")
    name = str(run_or_name)
    return name.split("-")[0] == "cartpole" or pretrained.describe(name).get("experiment") == "cartpole"


def find(run_or_name: Path | str) -> MPC:
    """The best controller of a run, or a pretrained one; 'cartpole' means 'cartpole-8'."""
    folder = Path(run_or_name)
    if not (folder / RECORD).exists():
        return load("cartpole-8" if str(run_or_name) == "cartpole" else str(run_or_name))
    config = read_record(folder)["config"]
    try:
        member = Member(config["latent_dim"], config["tau"], config["seed"])
        name = f"{member.name}-best"
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(f"{folder} must have the config of a cartpole decoder ({error!r})") from error
    return with_the_papers_search(load_decoder(name, folder / "decoders"), member.tau)


def ship(
    run_folder: Path | str, name: str = "cartpole", tau: float | None = None, folder: Path | str = FOLDER
) -> list[Path]:
    """Save the best decoder of a run under a name; returns the files.

    For a finished grid, these are the decoders with the best validation cost at τ (1 unless given) for each
    latent dimension d. If there are several dimensions, -d is appended to the name.
    """
    config, last = read_record(run_folder)["config"], read_records(Path(run_folder) / LOG)[-1]
    grid = "taus" in config
    taus = config["taus"] if grid else [config["tau"]]
    tau = tau if tau is not None else 1.0 if grid else taus[0]
    if tau not in taus:
        raise ValueError(f"tau must be one of {taus}, those of the run, got {tau}")
    written = []
    for dim in config["latent_dims"] if grid else [config["latent_dim"]]:
        members = [Member(dim, tau, seed) for seed in (config["seeds"] if grid else [config["seed"]])]
        costs = [last[f"{member.name}/best_cost" if grid else "best_cost"] for member in members]
        best = members[costs.index(min(costs))]
        decoder = load_decoder(f"{best.name}-best", Path(run_folder) / "decoders")
        info = {
            "experiment": "cartpole",
            "decoder": decoder.settings,
            "member": asdict(best),
            "validation_cost": min(costs),
            "training": config,
        }
        wanted = f"{name}-{dim}" if grid and len(config["latent_dims"]) > 1 else name
        written.append(pretrained.save(wanted, info, decoder.state_dict(), folder))
    return written
