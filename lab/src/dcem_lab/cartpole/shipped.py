"""The cartpole controllers that ship: the best decoder of each latent dimension, by name."""

from __future__ import annotations

from pathlib import Path

from dcem import MPC, Decoder
from dcem_lab import pretrained
from dcem_lab.cartpole import train as cartpole
from dcem_lab.cartpole.scores import load_decoder
from dcem_lab.cartpole.train import Member
from dcem_lab.pretrained import FOLDER
from dcem_lab.runs import read_record, read_records
from dcem_lab.runs.folder import LOG
from dcem_lab.runs.record import RECORD


def load(name: str, folder: Path | str = FOLDER) -> MPC:
    """What `ship` saved: 'cartpole-2', 'cartpole-8' or 'cartpole-16'.

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
    return _controller(decoder, info["member"]["tau"])


def _controller(decoder: Decoder, tau: float) -> MPC:
    """Embedded control as it was trained: DCEM with N=100, k=10, T=10."""
    return cartpole.controller(decoder, [tau], cartpole.Config(compile=False, device="cpu"))


def is_one(run_or_name: Path | str) -> bool:
    """Does this name a cartpole controller that ships, or a run of `dcem train cartpole`?"""
    if (Path(run_or_name) / RECORD).exists():
        return bool(read_record(run_or_name)["experiment"] == "cartpole")
    return str(run_or_name).split("-")[0] == "cartpole"


def find(run_or_name: Path | str) -> MPC:
    """The best controller of a run, or one that ships; 'cartpole' alone is 'cartpole-8'."""
    folder = Path(run_or_name)
    if not (folder / RECORD).exists():
        return load("cartpole-8" if str(run_or_name) == "cartpole" else str(run_or_name))
    config = read_record(folder)["config"]
    member = Member(config["latent_dim"], config["tau"], config["seed"])
    return _controller(load_decoder(f"{member.name}-best", folder / "decoders"), member.tau)


def ship(run_folder: Path | str, tau: float = 1.0, folder: Path | str = FOLDER) -> list[Path]:
    """Keep, of a finished grid, the decoder with the best validation cost for each latent dimension."""
    record = read_record(run_folder)
    config, last = record["config"], read_records(Path(run_folder) / LOG)[-1]
    written = []
    for dim in config["latent_dims"]:
        members = [Member(dim, tau, seed) for seed in config["seeds"]]
        best = min(members, key=lambda member: last[f"{member.name}/best_cost"])
        decoder = load_decoder(f"{best.name}-best", Path(run_folder) / "decoders")
        info = {
            "experiment": "cartpole",
            "decoder": decoder.settings,
            "member": {"latent_dim": dim, "tau": tau, "seed": best.seed},
            "validation_cost": last[f"{best.name}/best_cost"],
            "training": config,
        }
        written.append(pretrained.save(f"cartpole-{dim}", info, decoder.state_dict(), folder))
    return written
