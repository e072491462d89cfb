"""A video of a controller."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import imageio

from dcem_lab.runs import facts
from dcem_lab.runs.files import write_json
from dcem_lab.suite.agents import Episode
from dcem_lab.suite.evaluate import play
from dcem_lab.suite.results import controller_of
from dcem_lab.suite.trained import Trained

_COMPRESSION = "30"  # of x264: a 20 s film of 320×240 takes about 200 kB


class CannotDrawError(RuntimeError):
    """Frames cannot be rendered on this machine."""


def film(
    trained: Trained,
    path: Path,
    seed: int,
    fps: float,
    each_step: Callable[[], None] = lambda: None,
    controller: str | None = None,
) -> Episode:
    """Play the episode of a seed and write it as mp4, one frame per action; `each_step` is called after each.

    Its metadata (task, controller, seed, return, versions, machine, …) goes to a JSON file next to it.
    """
    environment = partial(trained.environment(), render_mode="rgb_array")
    _try_to_draw(environment())
    path.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = imageio.get_writer(
        path, fps=fps, macro_block_size=1, quality=None, output_params=["-crf", _COMPRESSION]
    )
    with writer:
        [episode] = play(
            trained, 1, seed, n_envs=1, each_step=each_step,
            environment=lambda: _Filmed(environment(), writer.append_data),
        )  # fmt: skip
    name = controller or controller_of(trained)
    about = {"task": trained.task, "experiment": trained.experiment, "controller": name}
    write_json(path.with_suffix(".json"), about | episode._asdict() | facts.here())
    return episode


class _Filmed(gymnasium.Wrapper):
    """An environment that shows a frame after every step."""

    def __init__(self, env: gymnasium.Env, show: Callable[[Any], None]) -> None:
        super().__init__(env)
        self._show = show

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        outcome = super().step(action)
        self._show(self.env.render())
        return outcome


def _try_to_draw(env: gymnasium.Env) -> None:
    with closing(env):
        env.reset(seed=0)
        try:
            frame = env.render()
        except gymnasium.error.DependencyNotInstalled as error:  # its message says what to install
            raise CannotDrawError(f"no frame could be drawn: {error}") from error
        except Exception as error:  # whatever the graphics libraries raise
            raise CannotDrawError(
                f"no frame could be drawn with MUJOCO_GL={os.environ.get('MUJOCO_GL')} ({error}); "
                "MUJOCO_GL=egl draws without a screen and needs the libraries libegl1 and libgl1"
            ) from error
    if frame is None:
        raise CannotDrawError("the environment draws no frames")
