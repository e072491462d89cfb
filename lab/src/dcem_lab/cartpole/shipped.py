"""The pretrained cartpole controllers by name: the best per latent dimension, and one for closed loop."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from dcem import MPC, Decoder
from dcem_lab import pretrained
from dcem_lab.cartpole import train as cartpole
from dcem_lab.cartpole.scores import load_decoder
from dcem_lab.cartpole.train import members_of
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
    if _is_run(run_or_name):
        training = read_record(run_or_name)["config"]
    else:
        training = pretrained.describe(str(run_or_name)).get("training", {})
    return bool(training.get("fresh", 1) < 1)


def is_one(run_or_name: Path | str) -> bool:
    """Is this the name of a pretrained cartpole controller, or a run of `dcem train cartpole`?"""
    if _is_run(run_or_name):
        return bool(read_record(run_or_name)["experiment"] == "cartpole")
    name = str(run_or_name)
    return name.split("-")[0] == "cartpole" or pretrained.describe(name).get("experiment") == "cartpole"


def find(run_or_name: Path | str) -> MPC:
    """The best controller of a run, or a pretrained one; 'cartpole' means 'cartpole-8'."""
    if not _is_run(run_or_name):
        return load("cartpole-8" if str(run_or_name) == "cartpole" else str(run_or_name))
    try:
        [member] = members_of(read_record(run_or_name)["config"])
        name = f"{member.name}-best"
    except (LookupError, TypeError, ValueError) as error:
        raise RunError(f"{run_or_name} must have the config of a cartpole decoder ({error!r})") from error
    return with_the_papers_search(load_decoder(name, Path(run_or_name) / "decoders"), member.tau)


def _is_run(run_or_name: Path | str) -> bool:
    return (Path(run_or_name) / RECORD).exists()


def ship(
    run_folder: Path | str, name: str = "cartpole", tau: float | None = None, folder: Path | str = FOLDER
) -> list[Path]:
    """Save the best decoder of a run under a name; returns the files.

    For a finished grid, these are the decoders with the best validation cost at τ (1 unless given) for each
    latent dimension d. If there are several dimensions, -d is appended to the name.
    """
    config, last = read_record(run_folder)["config"], read_records(Path(run_folder) / LOG)[-1]
    grid, members = "taus" in config, members_of(config)
    dims = list(dict.fromkeys(member.latent_dim for member in members))
    taus = list(dict.fromkeys(member.tau for member in members))
    tau = tau if tau is not None else 1.0 if grid else taus[0]
    if tau not in taus:
        raise ValueError(f"tau must be one of {taus}, those of the run, got {tau}")
    cost = {member: last[f"{member.name}/best_cost" if grid else "best_cost"] for member in members}
    written = []
    for dim in dims:
        best = min((m for m in members if (m.latent_dim, m.tau) == (dim, tau)), key=cost.__getitem__)
        decoder = load_decoder(f"{best.name}-best", Path(run_folder) / "decoders")
        info = {
            "experiment": "cartpole",
            "decoder": decoder.settings,
            "member": asdict(best),
            "validation_cost": cost[best],
            "training": config,
        }
        wanted = f"{name}-{dim}" if len(dims) > 1 else name
        written.append(pretrained.save(wanted, info, decoder.state_dict(), folder))
    return written
