"""How the bootstrap talks: a line, a bar, a reason to stop.  Everything goes to standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator


class Stop(Exception):
    """A step could not be done.  The message says why and what to do."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def bar(done: int, total: int, width: int = 32) -> str:
    """`████░░░░  48 %   45 / 93 MB`; done beyond total is full."""
    part = min(1.0, done / total) if total else 1.0
    full = int(part * width)
    return (
        f"{'█' * full}{'░' * (width - full)} {int(part * 100):3d} %  "
        f"{min(done, total) / 1e6:.0f} / {total / 1e6:.0f} MB"
    )


@contextlib.contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; elsewhere one line in the end."""
    live, drawn_s = sys.stderr.isatty(), 0.0

    def draw(done: int) -> None:
        nonlocal drawn_s
        now_s = time.monotonic()
        if live and (done >= total or now_s - drawn_s > 0.1):
            drawn_s = now_s
            print(f"\r  {label} {bar(done, total)}", end="", file=sys.stderr, flush=True)

    draw(0)
    yield draw
    draw(total)
    print(f"\r  {label} {bar(total, total)}", file=sys.stderr, flush=True)
