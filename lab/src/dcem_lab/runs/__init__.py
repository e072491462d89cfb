"""Runs: folders, checkpoints, logs, progress, signals, seeds. Everything around an experiment's maths."""

from dcem_lab.runs.checkpoint import Checkpoint, CheckpointError, Checkpoints
from dcem_lab.runs.export import Kept, export_run
from dcem_lab.runs.folder import Run, load_checkpoint
from dcem_lab.runs.log import read_records
from dcem_lab.runs.progress import Progress
from dcem_lab.runs.record import RunError, read_record
from dcem_lab.runs.settings import require
from dcem_lab.runs.signals import Interrupted
from dcem_lab.runs.state import seed_everything

__all__ = [
    "Checkpoint", "CheckpointError", "Checkpoints", "Interrupted", "Kept", "Progress", "Run", "RunError",
    "export_run", "load_checkpoint", "read_record", "read_records", "require", "seed_everything",
]  # fmt: skip
