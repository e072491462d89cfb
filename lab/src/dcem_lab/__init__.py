"""The experiments of the differentiable cross-entropy method, and what goes beyond them, as commands.

from dcem_lab import Agent

agent = Agent.load("cheetah-run")
action = agent.act(observation)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcem_lab.suite.act import Agent

__all__ = ["Agent"]


def __getattr__(name: str) -> Any:
    if name == "Agent":  # imported late: commands must not wait for a simulator
        from dcem_lab.suite.act import Agent

        return Agent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
