"""Longest prefix first, without a window: who has most of its prompt kept goes next, whoever waits.

The order that SGLang calls `lpm`, to be compared with: all waiting are looked at in every step (there, 128
of them at most).  It starves who has nothing kept.

Refuses to know: tenants, costs.  Source: SGLang; its issue 31954; SCHEDULER.md §5.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from executor.scheduler.fcfs import Fcfs
from executor.scheduler.protocol import W
from executor.scheduler.step import Draft


class Longest(Fcfs[W]):
    """First come first served among those of whom as much is found."""

    __slots__ = ()

    def _order(self, draft: Draft[W]) -> Seq[W]:
        return sorted(self._waiting, key=lambda seq: -draft.found(seq).blocks)
