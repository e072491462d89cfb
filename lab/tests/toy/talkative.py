"""The `dcem` command, but for a line of progress at every step: python -m toy.talkative train ..."""

import sys

from dcem_lab import cli
from dcem_lab.runs import progress

if __name__ == "__main__":
    progress._LINE_SECONDS = 0.0
    sys.exit(cli.main())
