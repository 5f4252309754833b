"""No image of this process on disk: it holds keys, and what customers said.

A limit of zero stops plain core files and is inherited; a process that is not dumpable leaves none through
a handler either (core(5): those ignore the limit), and no other process of its account reads its memory.
Called before a key is read.  The executor has the same (`executor.undumped`): neither imports the other.
Refuses to know: swap, which is the machine's.  Source: SECURITY.md §2 (Purge proof), P10.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def forbid_dumps() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
