"""What an engine takes in: commands, and word of connections that closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from executor.contract import Command


@dataclass(frozen=True, slots=True)
class Gone:
    """A connection closed: everything it asked for is aborted, and nobody hears of it."""


Inbox = Callable[[], Sequence[tuple[int, Command | Gone]]]
"""Take what arrived since the last call: (owner, command), in order.  Never waits."""
