"""Differentiable model-predictive control."""

from dcem.control.closed_loop import Trajectory, closed_loop
from dcem.control.decoder import Decoder
from dcem.control.embed import embedding_loss
from dcem.control.knots import Knots
from dcem.control.mpc import MPC, Plan
from dcem.control.proposals import PolicyProposals
from dcem.control.risk import CVaR
from dcem.control.rollout import Model, rollout, sequence_constraint, sequence_cost

__all__ = [
    "MPC", "CVaR", "Decoder", "Knots", "Model", "Plan", "PolicyProposals", "Trajectory", "closed_loop",
    "embedding_loss", "rollout", "sequence_constraint", "sequence_cost",
]  # fmt: skip
