"""What one durable write costs in a folder: the part of a gateway's latency that no gateway can save.

Refuses to know: what is written durably by whom.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

BYTES = 4096


def durable_ms(folder: Path, *, syncs: int = 100, in_turn: int = 1) -> list[float]:
    """Append and `fdatasync`, `in_turn` times one after the other, `syncs` times.  Blocks."""
    path, data, took = folder / "sync.probe", os.urandom(BYTES), []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(syncs):
            begun = time.perf_counter()
            for _ in range(in_turn):
                os.write(fd, data)
                os.fdatasync(fd)
            took.append((time.perf_counter() - begun) * 1000)
    finally:
        os.close(fd)
        path.unlink()
    return took
