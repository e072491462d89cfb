"""Runs: folders, checkpoints, logs, progress, signals, seeds. What an experiment needs around its maths."""

from dcem.runs.checkpoint import Checkpoint, CheckpointError, Checkpoints
from dcem.runs.config import require
from dcem.runs.export import export_csv
from dcem.runs.folder import Run, load_checkpoint
from dcem.runs.log import read_records
from dcem.runs.progress import Progress
from dcem.runs.record import RunError, read_record
from dcem.runs.seeds import rng_state, seed_everything, set_rng_state
from dcem.runs.signals import Interrupted

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "Interrupted",
    "Progress",
    "Run",
    "RunError",
    "export_csv",
    "load_checkpoint",
    "read_record",
    "read_records",
    "require",
    "rng_state",
    "seed_everything",
    "set_rng_state",
]
