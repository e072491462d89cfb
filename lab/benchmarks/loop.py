"""Where a step of an agent's training spends its time: planning, environments, updates, bookkeeping.

    python benchmarks/loop.py --preset best --task cheetah-run --steps 300
    python benchmarks/loop.py --preset tiny --steps 100 --output out/loop.csv
    OMP_NUM_THREADS=1 python benchmarks/loop.py --experiment agent --preset cpu

On a CUDA device updates run beside planning and the environments, so that shares add up to more than 100 %.
"""

import time
from contextlib import closing
from dataclasses import replace

from rows import options, origin, put

from dcem_lab.suite import agent, planet
from dcem_lab.suite.agents import Beginning, build
from dcem_lab.suite.envs.dmc import probe
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.rssm import RSSM
from dcem_lab.suite.rssm.fast import native
from dcem_lab.training.devices import choose_device, training_device

EXPERIMENTS = {"planet": planet, "agent": agent}
PARTS = ("plan", "update", "value_update", "env", "record")


def measure(config: planet.Config | agent.Config, steps: int, warmup: int) -> dict[str, float]:
    """Milliseconds of each part and of a whole step, and environment steps per second."""
    device, loop, env = training_device(config.device), config.loop, probe(planet.environment(config))
    with closing(ParallelEnv(planet.environment(config), loop.n_envs, loop.n_workers)) as envs:
        sizes = env.observation_space.shape[0], env.action_space.shape[0]
        begin = Beginning(RSSM(*sizes, config.world_model))
        trained = build(envs, config.agent_for(env), begin, config.seed, device)
        while trained.collector.episodes < config.collecting.seed_episodes:
            trained.step()
        for _ in range(warmup):
            trained.step()
        trained.learners.stopwatch.read()
        start = time.perf_counter()
        for _ in range(steps):
            trained.step()
        parts = trained.learners.stopwatch.read()
        step = 1000 * (time.perf_counter() - start) / steps
    rate = 1000 * loop.n_envs * env.action_repeat / step
    return {**{part: parts.get(part, 0.0) for part in PARTS}, "step": step, "env_steps_per_s": rate}


def main() -> None:
    parser = options(__doc__, required=False)
    parser.add_argument("--experiment", choices=list(EXPERIMENTS), default="planet")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--task", default="cheetah-run")
    parser.add_argument("--steps", type=int, default=100, help="measured")
    parser.add_argument("--warmup", type=int, default=20, help="before that, after the seed episodes")
    given = parser.parse_args()
    experiment = EXPERIMENTS[given.experiment]
    if given.preset not in experiment.PRESETS:
        parser.error(f"--preset must be one of {', '.join(experiment.PRESETS)}, got {given.preset}")
    config = replace(experiment.Config(**experiment.PRESETS[given.preset]), task=given.task)
    figures = measure(config, given.steps, given.warmup)
    device = choose_device(config.device)
    print(f"{given.task}, {given.preset}, {config.loop.n_envs} environments, {device}")
    for part in PARTS:
        print(f"{part:8} {figures[part]:8.2f} ms {figures[part] / figures['step']:6.0%}")
    print(
        f"step     {figures['step']:8.2f} ms, {figures['env_steps_per_s']:.0f} environment steps per second"
    )
    if given.output:
        named = {"experiment": given.experiment, "preset": given.preset, "task": given.task}
        named["kernels"] = "no" if device.type == "cpu" and native.library() is None else "yes"
        row = named | {"n_envs": config.loop.n_envs, **figures} | origin(device)
        put(given.output, [row], same=(*named, "device"))


if __name__ == "__main__":
    main()
