"""One virtual environment a peer, `.bench-<peer>/` in the checkout, made on first use."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
COCO = "coco-experiment==2.8.2"  # the functions of benchmarks/optimisers

# The pip installs of each peer, in order. Torch comes first: whatever else is asked for, it stays this one.
PEERS = {
    "theseus": [
        [TORCH],
        ["numpy", "scipy", "lxml", "PyYAML", "setuptools", "wheel"],
        ["semantic-version==2.10.0", "pybind11==3.1.0", "urdf-parser-py==0.0.4"],
        # Without its dependencies: they include a sparse solver that wants system libraries.
        ["--no-deps", "--no-build-isolation", "torchlie==0.1.0", "torchkin==0.1.1", "theseus-ai==0.2.3"],
    ],
    "evotorch": [[TORCH], ["evotorch==0.6.1", COCO]],
    "pytorch_mppi": [[TORCH], ["pytorch-mppi==0.9.1"]],
    "jax_program": [[TORCH], ["numpy", "jax==0.10.2"]],
    "torchopt": [[TORCH], ["torchopt==0.7.3"]],
    "cvxpylayers": [[TORCH], ["cvxpylayers==1.2.0"]],
    "mpc_pytorch": [
        [TORCH],
        ["setuptools", "wheel", "numpy"],
        ["--no-deps", "--no-build-isolation", "mpc==0.0.6"],
    ],
    "difftopk": [[TORCH], ["numpy"], ["--no-deps", "difftopk==0.2.0", "diffsort==0.2.0"]],
    # Its sources come from a checkout, see peers/released.py; it fails with NumPy 2.
    "released": [
        [TORCH],
        ["setuptools", "wheel", "numpy==1.26.4", "semantic-version==2.10.0"],
        ["--no-deps", "--no-build-isolation", "mpc==0.0.6"],  # its cartpole
    ],
    "dcem": [[TORCH], [COCO]],  # the checkout's own sources come by PYTHONPATH
    "pycma": [["cma==4.5.0", COCO]],
    "scipy": [["scipy", COCO]],
    "nevergrad": [["nevergrad==1.0.12", "numpy==2.2.6", COCO]],
}
UNCONSTRAINED = {"nevergrad", "released"}  # they fail with the NumPy of constraints.txt


class InstallError(Exception):
    """A peer's environment could not be made; the message is pip's last word."""


def python(name: str) -> Path:
    """The interpreter of an environment: this one for "ours", else the peer's, installed if need be."""
    if name == "ours":
        return Path(sys.executable)
    folder = ROOT / f".bench-{name.replace('_', '-')}"
    interpreter = folder / "bin" / "python"
    stamp = folder / ".installed"
    steps = json.dumps(PEERS[name])
    if stamp.exists() and stamp.read_text() == steps:
        return interpreter
    print(f"installing {name} into {folder.name} ...", flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    constraint = [] if name in UNCONSTRAINED else ["--constraint", str(ROOT / "constraints.txt")]
    for packages in PEERS[name]:
        pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *constraint, *packages])
    stamp.write_text(steps)
    return interpreter


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise InstallError((errors or done.stderr.splitlines() or ["no message"])[-1])
