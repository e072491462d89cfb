"""A film of two controllers of the cartpole: embedded DCEM beside CEM over the forces themselves.

From the same state each plans one second, and the plan is carried out. Plans of a latent space are meant for
that: it was learned from first states alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from dcem import MPC
from dcem.systems.cartpole import Cartpole
from dcem_lab.cartpole import shipped as cartpole_shipped
from dcem_lab.cartpole.baselines import STRONG, expert_controller

HOLD = 8  # frames that the end of a plan stays on screen


class Side(NamedTuple):
    """One half of the screen: a controller's plans from the first states (B, 5), carried out."""

    title: str
    states: Tensor  # (H + 1, B, 5)
    actions: Tensor  # (H, B)
    costs: Tensor  # (H + 1, B), up to then


def film(
    what: str | Path, path: Path, seed: int = 0, starts: int = 4, fps: float = 10
) -> tuple[Path, list[Side]]:
    """Write the film of a run or a name that `cartpole_shipped.find` takes, from random states.

    An mp4; a gif where no encoder is installed. Returns where it is, and what it shows.
    """
    embedded = cartpole_shipped.find(what)
    generator = Generator().manual_seed(seed)
    states = hanging_states(starts, generator)
    sides = [
        carry_out(_name(embedded), embedded, states, generator),
        carry_out("CEM over 20 forces", expert_controller(STRONG), states, generator),
    ]
    return write_film(path, draw_frames(sides), fps), sides


def hanging_states(count: int, generator: Generator) -> Tensor:
    """First states (count, 5) from which there is something to see: the pole in the lower half."""
    states = Cartpole.initial_states(100 * count, generator=generator)
    return states[states[:, 2] < 0][:count]


@torch.no_grad()
def carry_out(title: str, mpc: MPC, states: Tensor, generator: Generator) -> Side:
    """One plan from each state, step by step."""
    plan = mpc(states, generator=generator)
    system, path, costs = Cartpole(), [states], [torch.zeros(len(states))]
    for action in plan.actions.unbind(-2):
        following, cost = system.step(path[-1], action)
        path.append(following)
        costs.append(costs[-1] + cost)
    count = mpc.solver.n_samples * mpc.solver.n_iters
    title = f"{title}\n{count:,} sampled trajectories"
    return Side(title, torch.stack(path), plan.actions[..., 0].mT, torch.stack(costs))


def draw_frames(sides: Sequence[Side]) -> Iterator[np.ndarray]:
    """Images (height, width, 3), one per step, then a pause at the end of each plan."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), dpi=100, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(sides))
    steps, starts = sides[0].actions.shape
    for start in range(starts):
        for t in [*range(steps + 1), *[steps] * HOLD]:
            for ax, side in zip(axes, sides, strict=True):
                action = side.actions[t, start].item() if t < steps else None
                Cartpole().draw(side.states[t, start], ax, action)
                ax.set_title(side.title, fontsize=10)
                cost = side.costs[t, start].item()
                ax.text(-2.9, 1.25, f"cost {cost:6.2f}   step {t} of {steps}", family="monospace", fontsize=9)
            canvas.draw()
            yield np.asarray(canvas.buffer_rgba())[..., :3].copy()


def write_film(path: Path, frames: Iterator[np.ndarray], fps: float) -> Path:
    """As mp4 where ffmpeg is installed, else as a gif of the same name; returns the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import imageio

        importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return _write_gif(path.with_suffix(".gif"), frames, fps)
    if path.suffix == ".gif":
        return _write_gif(path, frames, fps)
    writer: Any = imageio.get_writer(path, fps=fps, macro_block_size=1)
    with writer:
        for frame in frames:
            writer.append_data(frame)
    return path


def _write_gif(path: Path, frames: Iterator[np.ndarray], fps: float) -> Path:
    from PIL import Image

    first, *others = (Image.fromarray(frame).quantize(64) for frame in frames)
    first.save(path, save_all=True, append_images=others, duration=1000 / fps, loop=0)
    return path


def _name(embedded: MPC) -> str:
    kind = "DCEM" if embedded.solver.tau else "CEM"
    return f"embedded {kind}, {embedded.search_dim} latent dimensions"
