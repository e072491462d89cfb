"""The toy experiment lives one folder up, where the command-line tests share it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
