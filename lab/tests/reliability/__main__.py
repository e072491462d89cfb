"""A measurement in a process of its own: python -m reliability NAME COUNT FOLDER prints its outcome."""

import dataclasses
import json
import sys
from pathlib import Path

from reliability.catalogue import CATALOGUE

if __name__ == "__main__":
    name, count, folder = sys.argv[1:]
    outcome = CATALOGUE[name].measure(int(count), Path(folder))
    print(json.dumps(dataclasses.asdict(outcome)))
