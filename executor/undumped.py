"""No image of this process on disk: it holds prompts, answers and what is kept of them.

A limit of zero stops plain core files and is inherited; a process that is not dumpable leaves none through
a handler either (core(5): those ignore the limit), and no other process of its account reads its memory.
The gateway has the same (`security.undumped`): neither imports the other.  Source: SECURITY.md §2 (Purge proof).
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
