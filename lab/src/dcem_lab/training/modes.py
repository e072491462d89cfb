"""The ways to differentiate a plan, as configs and command lines name them."""

import math

from dcem.backward import Backward, Checkpoint, Detach, Prune, Truncate, Unroll

# Not `Implicit`, which needs second derivatives: rollouts with hand-written gradients have none.
MODES = ("unroll", "checkpoint", "truncate", "prune", "detach")


def by_name(name: str, kept: float, n_iters: int) -> Backward:
    """A mode by its name; ``kept`` is the share of iterations or samples that count.

    >>> by_name("truncate", 0.25, n_iters=10)
    Truncate(n=3)
    """
    if name == "truncate":
        return Truncate(math.ceil(kept * n_iters))
    if name == "prune":
        return Prune(kept)
    return {"unroll": Unroll, "checkpoint": Checkpoint, "detach": Detach}[name]()
