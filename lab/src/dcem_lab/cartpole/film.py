"""Videos of cartpole controllers next to each other, from the same states.

They show DCEM in a latent space next to CEM over the forces: each plans one second, and the plan is executed.
If the decoder was trained for closed-loop control, all controllers, including the paper's and CEM, replan
after every step.
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
from dcem.control import closed_loop
from dcem.systems.cartpole import Cartpole
from dcem_lab.cartpole import shipped as cartpole_shipped
from dcem_lab.cartpole.baselines import STRONG, expert_controller
from dcem_lab.cartpole.driving import STEPS
from dcem_lab.cartpole.scores import trajectories

HOLD = 8  # frames for which the last one stays on screen
PAPERS = "cartpole-8"  # the paper's way of training, the best of its latent dimensions


class Side(NamedTuple):
    """One panel: the rollout of a controller from initial states (B, 5)."""

    title: str
    states: Tensor  # (T + 1, B, 5)
    actions: Tensor  # (T, B)
    costs: Tensor  # (T + 1, B), up to then


def film(
    what: str | Path, path: Path, seed: int = 0, starts: int = 4, fps: float = 10
) -> tuple[Path, list[Side]]:
    """Write the video of a run or a name that `cartpole_shipped.find` takes, from random states.

    An mp4, or a gif if no encoder is installed. Returns its path, and what it shows.
    """
    embedded = cartpole_shipped.find(what)
    generator = Generator().manual_seed(seed)
    states = hanging_states(starts, generator)
    kind = "DCEM" if embedded.solver.tau else "CEM"
    show, shown = carry_out, {f"{kind} in {embedded.search_dim} latent dimensions": embedded}
    if cartpole_shipped.drives(what):
        papers = cartpole_shipped.load(PAPERS)
        show, shown = replan, {"trained in its closed loop": embedded, "trained as in the paper": papers}
    shown["CEM over 20 forces"] = expert_controller(STRONG)
    sides = [show(title, mpc, states, generator) for title, mpc in shown.items()]
    return write_film(path, draw_frames(sides), fps), sides


def hanging_states(count: int, generator: Generator) -> Tensor:
    """Initial states (count, 5) with the pole in the lower half, so that there is something to see."""
    states = Cartpole.initial_states(100 * count, generator=generator)
    return states[states[:, 2] < 0][:count]


@torch.no_grad()
def carry_out(title: str, mpc: MPC, states: Tensor, generator: Generator) -> Side:
    """One plan from each state, step by step."""
    plan = mpc(states, generator=generator)
    system, path, costs = Cartpole(), [states], []
    for action in plan.actions.unbind(-2):
        following, cost = system.step(path[-1], action)
        path.append(following)
        costs.append(cost)
    return _side(title, mpc, torch.stack(path), plan.actions.movedim(-2, 0), torch.stack(costs))


def replan(title: str, mpc: MPC, states: Tensor, generator: Generator) -> Side:
    """A new plan after every step."""
    return _side(title, mpc, *closed_loop(mpc, states, STEPS, generator=generator))


def _side(title: str, mpc: MPC, states: Tensor, actions: Tensor, costs: Tensor) -> Side:
    title = f"{title}\n{trajectories(mpc):,} trajectories per plan"
    so_far = torch.cat([torch.zeros_like(costs[:1]), costs.cumsum(0)])
    return Side(title, states, actions.squeeze(-1), so_far)


def draw_frames(sides: Sequence[Side]) -> Iterator[np.ndarray]:
    """Images (height, width, 3), one per step, then a pause at the end."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(sides), 3.2), dpi=100, layout="constrained")
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
        path = path.with_suffix(".gif")
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
