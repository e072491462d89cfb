"""What older versions of torch cannot do."""

import torch

COMPILES = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 13)
"""Whether iterations can be compiled: earlier versions fail to trace some, and solves run uncompiled."""
