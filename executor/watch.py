"""Who holds the executor and who waits for it, for whoever looks: by class of work and tenant.

Device time of about the last minute (it fades, it is not a window), against the part that is due by
weight to those who are here.  Refuses to know: the policy, users.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import exp
from typing import Final

from executor.contract import Lane
from executor.sequence import Sequence

_FADE_NS: Final = 60e9
_KEPT: Final = 4096
Key = tuple[str, str]  # class, tenant


class Watch:
    """Owned by the engine."""

    def __init__(self) -> None:
        self._used: dict[Key, tuple[float, int]] = {}  # nanoseconds, as of then
        self._sum = (0.0, 0)

    def charge(self, seq: Sequence, device_ns: int, now_ns: int) -> None:
        key = (seq.workload, seq.tenant)
        self._used[key] = (self._faded(self._used.get(key, (0.0, 0)), now_ns) + device_ns, now_ns)
        self._sum = (self._faded(self._sum, now_ns) + device_ns, now_ns)
        if len(self._used) > _KEPT:
            least = sorted(self._used, key=lambda each: self._faded(self._used[each], now_ns))
            for each in least[: _KEPT // 2]:
                del self._used[each]

    def lanes(
        self, running: Iterable[Sequence], waiting: Iterable[Sequence], now_ns: int
    ) -> list[Lane]:
        """All of them."""
        rows: defaultdict[Key, list[Sequence]] = defaultdict(list)
        queue: defaultdict[Key, list[Sequence]] = defaultdict(list)
        weights: dict[str, float] = {}
        for seqs, kind in ((running, rows), (waiting, queue)):
            for seq in seqs:
                kind[seq.workload, seq.tenant].append(seq)
                weights[seq.tenant] = seq.tenant_weight
        whole = sum(weights.values())
        total = max(1.0, self._faded(self._sum, now_ns))
        return [
            Lane(
                workload=key[0],
                tenant=key[1],
                running=len(rows.get(key, ())),
                waiting=len(queue.get(key, ())),
                blocks=sum(len(seq.blocks) for seq in rows.get(key, ())),
                used=min(1.0, self._faded(self._used.get(key, (0.0, 0)), now_ns) / total),
                due=weights[key[1]] / whole,
                oldest_ms=max(
                    ((now_ns - seq.since_ns) // 1_000_000 for seq in queue.get(key, ())), default=0
                ),
            )
            for key in {*rows, *queue}
        ]

    @staticmethod
    def _faded(value: tuple[float, int], now_ns: int) -> float:
        return value[0] * exp(-max(0, now_ns - value[1]) / _FADE_NS)
