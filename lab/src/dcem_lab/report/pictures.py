"""Arrays and files as data URLs, so that the page is one file."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

import numpy as np

# ColorBrewer's blues, light to dark.
_BLUES = (
    (247, 251, 255), (222, 235, 247), (198, 219, 239), (158, 202, 225), (107, 174, 214), (66, 146, 198),
    (33, 113, 181), (8, 81, 156), (8, 48, 107),
)  # fmt: skip
_KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}


def shades(values: np.ndarray, low: float, high: float) -> str:
    """A surface (Y, X) as a PNG data URL, the first row at the bottom; lighter is lower."""
    levels = np.clip((values - low) / (high - low), 0, 1) * 255
    return _address("image/png", _png(np.flipud(levels).astype(np.uint8)))


def film(path: Path) -> str:
    """The data URL of a video that plays in the page."""
    return _address(_KINDS[path.suffix], path.read_bytes())


def _address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _png(levels: np.ndarray) -> bytes:
    """8-bit indices (Y, X) into a palette of blues."""
    places = np.linspace(0, len(_BLUES) - 1, 256)
    channels = [np.interp(places, range(len(_BLUES)), channel) for channel in zip(*_BLUES, strict=True)]
    palette = np.stack(channels, axis=-1).round().astype(np.uint8)
    rows = np.pad(levels, ((0, 0), (1, 0)))  # every PNG row starts with its filter type: 0, none
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
