"""Few-shot regression by DCEM and by gradient steps, as the example measures it, with a record of where."""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples"), str(HERE.parent)]

import meta_learning  # noqa: E402
from machine import machine  # noqa: E402


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="updates of a training (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each solver (%(default)s)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the table and its record")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    facts = machine(torch.get_num_threads()) | {"torch": torch.__version__, "steps": args.steps}
    began = time.perf_counter()
    meta_learning.main(args.steps, args.out, args.seeds)
    facts |= {"seeds": args.seeds, "wall_seconds": round(time.perf_counter() - began, 1)}
    (args.out / "run.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
