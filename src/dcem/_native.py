"""The C++ kernels of `native.cpp`, built at first use: this takes a second, once, and needs a compiler.

`library()` is None if they are not available. Everything then runs in plain torch, as it does on other
devices and inside transforms. The environment variable DCEM_NATIVE=0 requests that.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SOURCE = Path(__file__).with_name("native.cpp")
_PARALLEL = 32_768  # elements below which more threads cost more than they save; torch's own value
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}
_PLAIN = (Tensor, nn.Parameter)
# Every kernel's arguments: integers (l, i), a double (d) or a pointer (p).
KERNELS = {
    "soft_topk": "ll pdpdpd idi ppp",
    "soft_topk_backward": "ll ppppdp ii ppp",
    "moments": "lll ppppddpd i pppp",
    "moments_backward": "lll ppppd ppppp i pppp",
    "refit": "lll pppp ddd i dddpd i pppp",
    "refit_backward": "lll ppppppp did ppp i pppp",
}
_C_TYPES: dict[str, Any] = {
    "l": ctypes.c_int64,
    "i": ctypes.c_int,
    "d": ctypes.c_double,
    "p": ctypes.c_void_p,
}
OPERATORS = torch.library.Library("dcem", "FRAGMENT")  # the kernels as operators that torch.compile knows


def kernel(name: str, *tensors: Any) -> Any:
    """The kernel for these tensors; None unless all are plain CPU tensors of one dtype.

    Not for calls inside transforms, whose tensors only look plain.
    """
    dtype = tensors[0].dtype
    for x in tensors:
        if isinstance(x, Tensor) and not (type(x) in _PLAIN and x.dtype is dtype and x.is_cpu):
            return None
    return kernels().get((name, dtype))


def compiles_natively(x: Tensor) -> bool:
    """Inside `torch.compile`, and in no other transform: is there a kernel for tensors like x?"""
    if torch._C._are_functorch_transforms_active() or not torch.compiler.is_dynamo_compiling():
        return False
    return x.device.type == "cpu" and x.dtype in _DTYPES and available()


@torch.compiler.assume_constant_result
def available() -> bool:
    return bool(kernels())


def pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def threads(x: Tensor) -> int:
    """Number of threads for work on x."""
    return 1 if x.numel() < _PARALLEL else torch.get_num_threads()


@functools.cache
def kernels() -> dict[tuple[str, torch.dtype], Any]:
    """Every kernel by its name and dtype; empty if they are not available."""
    found = library()
    if found is None:
        return {}
    table = {}
    for dtype, suffix in _DTYPES.items():
        addresses = (ctypes.c_void_p * len(KERNELS)).in_dll(found, f"kernels_{suffix}")
        for address, (name, arguments) in zip(addresses, KERNELS.items(), strict=True):
            types = [_C_TYPES[letter] for letter in arguments if letter != " "]
            table[name, dtype] = ctypes.CFUNCTYPE(ctypes.c_int, *types)(address)
    return table


@functools.cache
def library() -> ctypes.CDLL | None:
    has_avx2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")  # it can also be "NO AVX"
    return build(SOURCE, ["-mavx2", "-mfma"] if has_avx2 else [])


def build(source: Path, instructions: list[str]) -> ctypes.CDLL | None:
    """The shared library for a C++ file, built now or earlier; None if it cannot be built."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    if os.environ.get("DCEM_NATIVE") == "0" or compiler is None or not hasattr(os, "getuid"):
        return None
    options = ["-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", *instructions]
    name = hashlib.sha256(source.read_bytes() + f"{compiler}{options}".encode()).hexdigest()[:16]
    try:
        path = _own_folder() / f"{source.stem}-{name}.so"
        # OpenMP is torch's own, which is already loaded; without it, one thread is used.
        ways = ([compiler, *options, *more] for more in _OPENMP)
        if not path.exists() and not any(_build(way, source, path) for way in ways):
            return None
        return ctypes.CDLL(str(path))
    except OSError:
        return None


_OPENMP = (["-fopenmp"], ["-fopenmp-simd"])


def _own_folder() -> Path:
    """A folder for built files that nobody else can write to; OSError if there is none."""
    folder = Path(tempfile.gettempdir()) / f"dcem-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not only ours")
    return folder


def _build(way: list[str], source: Path, path: Path) -> bool:
    """Build into `path` atomically, even if other processes do the same at the same time."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [*way, "-shared", "-fPIC", str(source), "-o", str(built)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        os.replace(built, path)
    return True
