"""Where a step of the PlaNet agent spends its time: planning, environments, updates, bookkeeping.

    python benchmarks/loop.py --preset best --task cheetah-run --steps 300
    python benchmarks/loop.py --preset tiny --steps 100 --output out/loop.csv

On a CUDA device updates run beside planning and the environments, so that shares add up to more than 100 %.
"""

import time
from contextlib import closing
from dataclasses import replace

from rows import options, origin, put

from dcem_lab.suite.agents import Beginning, build
from dcem_lab.suite.envs.dmc import probe
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.planet import PRESETS, Config, environment
from dcem_lab.suite.rssm import RSSM
from dcem_lab.training.devices import choose_device, training_device

PARTS = ("plan", "update", "env", "record")


def measure(config: Config, steps: int, warmup: int) -> dict[str, float]:
    """Milliseconds of each part and of a whole step, and environment steps per second."""
    device, loop, env = training_device(config.device), config.loop, probe(environment(config))
    with closing(ParallelEnv(environment(config), loop.n_envs, loop.n_workers)) as envs:
        sizes = env.observation_space.shape[0], env.action_space.shape[0]
        begin = Beginning(RSSM(*sizes, config.world_model))
        agent = build(envs, config.agent_for(env), begin, config.seed, device)
        while agent.collector.episodes < config.collecting.seed_episodes:
            agent.step()
        for _ in range(warmup):
            agent.step()
        agent.learners.stopwatch.read()
        start = time.perf_counter()
        for _ in range(steps):
            agent.step()
        parts = agent.learners.stopwatch.read()
        step = 1000 * (time.perf_counter() - start) / steps
    rate = 1000 * loop.n_envs * env.action_repeat / step
    return {**{part: parts.get(part, 0.0) for part in PARTS}, "step": step, "env_steps_per_s": rate}


def main() -> None:
    parser = options(__doc__, required=False)
    parser.add_argument("--preset", choices=list(PRESETS), default="tiny")
    parser.add_argument("--task", default="cheetah-run")
    parser.add_argument("--steps", type=int, default=100, help="measured")
    parser.add_argument("--warmup", type=int, default=20, help="before that, after the seed episodes")
    given = parser.parse_args()
    config = replace(Config(**PRESETS[given.preset]), task=given.task)
    figures = measure(config, given.steps, given.warmup)
    print(f"{given.task}, {given.preset}, {config.loop.n_envs} environments, {choose_device(config.device)}")
    for part in PARTS:
        print(f"{part:8} {figures[part]:8.2f} ms {figures[part] / figures['step']:6.0%}")
    print(
        f"step     {figures['step']:8.2f} ms, {figures['env_steps_per_s']:.0f} environment steps per second"
    )
    if given.output:
        row = {"preset": given.preset, "task": given.task, "n_envs": config.loop.n_envs, **figures}
        put(given.output, [row | origin(choose_device(config.device))], same=("preset", "task", "device"))


if __name__ == "__main__":
    main()
