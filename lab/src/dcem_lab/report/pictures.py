"""Arrays and files as data addresses, so that the page is one file."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

import matplotlib
import numpy as np

from dcem_lab.report.html import Html, element

_KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}


def shades(values: np.ndarray, low: float, high: float) -> str:
    """A surface (Y, X) as the address of a PNG, the first row at the bottom; lighter is lower."""
    levels = np.clip((values - low) / (high - low), 0, 1) * 255
    return _address("image/png", _png(np.flipud(levels).astype(np.uint8)))


def video(path: Path, caption: str) -> Html:
    """A film that plays in the page."""
    kind = _KINDS[path.suffix]
    source = _address(kind, path.read_bytes())
    if kind.startswith("image"):
        shown = element("img", src=source, alt=caption)
    else:
        shown = element("video", src=source, controls=True, loop=True, muted=True, playsinline=True,
                        preload="auto", aria_label=caption)  # fmt: skip
    return element("figure", shown, element("figcaption", caption), class_="film")


def _address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _png(levels: np.ndarray) -> bytes:
    """8-bit indices (Y, X) into a palette of blues."""
    palette = (matplotlib.colormaps["Blues"](np.arange(256))[:, :3] * 255).round().astype(np.uint8)
    rows = np.pad(levels, ((0, 0), (1, 0)))  # every row begins with its filter, none
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", levels.shape[1], levels.shape[0], 8, 3, 0, 0, 0),
        b"PLTE": palette.tobytes(),
        b"IDAT": zlib.compress(rows.tobytes(), 9),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
