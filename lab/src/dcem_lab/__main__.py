"""`python -m dcem_lab`, the same as the `dcem` command."""

import sys

from dcem_lab.cli import main

sys.exit(main())
