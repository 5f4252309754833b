"""Who holds the executor and who waits for it, for whoever looks: by class of work and tenant.

Device time of about the last minute (it fades, it is not a window), against the part that is due by
weight to those who are here.  Looking is done between steps, so it may take no more than `_PART` of the
time, however many look: until then they are shown what was seen last.  Refuses to know: the policy, users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp
from typing import Final

from executor.contract import Lane
from executor.sequence import Sequence

_FADE_NS: Final = 60e9
_KEPT: Final = 4096
_PART: Final = 0.02
Key = tuple[str, str]  # class, tenant


@dataclass(slots=True)
class _Here:
    """What is here of one key."""

    since_ns: int  # that of the one who waits longest
    running: int = 0
    waiting: int = 0
    blocks: int = 0


class Watch:
    """Owned by the engine."""

    def __init__(self) -> None:
        self._used: dict[Key, tuple[float, int]] = {}  # nanoseconds, as of then
        self._sum = (0.0, 0)
        self._seen: list[Lane] = []
        self._again_ns = 0

    def charge(self, seq: Sequence, device_ns: int, now_ns: int) -> None:
        key = (seq.workload, seq.tenant)
        self._used[key] = (self._faded(self._used.get(key, (0.0, 0)), now_ns) + device_ns, now_ns)
        self._sum = (self._faded(self._sum, now_ns) + device_ns, now_ns)
        if len(self._used) > _KEPT:
            least = sorted(self._used, key=lambda each: self._faded(self._used[each], now_ns))
            for each in least[: _KEPT // 2]:
                del self._used[each]

    def lanes(
        self,
        running: Callable[[], Iterable[Sequence]],
        waiting: Callable[[], Iterable[Sequence]],
        clock_ns: Callable[[], int],
    ) -> list[Lane]:
        """All of them."""
        now_ns = clock_ns()
        if now_ns >= self._again_ns:
            self._seen = self._look(running(), waiting(), now_ns)
            self._again_ns = now_ns + int((clock_ns() - now_ns) / _PART)
        return self._seen

    def _look(
        self, running: Iterable[Sequence], waiting: Iterable[Sequence], now_ns: int
    ) -> list[Lane]:
        here: dict[Key, _Here] = {}
        weights: dict[str, float] = {}
        for seq in running:
            key = seq.workload, seq.tenant
            if (each := here.get(key)) is None:
                each = here[key] = _Here(now_ns)
            each.running += 1
            each.blocks += len(seq.blocks)
            weights[seq.tenant] = seq.tenant_weight
        for seq in waiting:
            key = seq.workload, seq.tenant
            if (each := here.get(key)) is None:
                each = here[key] = _Here(now_ns)
            each.waiting += 1
            each.since_ns = min(each.since_ns, seq.since_ns)
            weights[seq.tenant] = seq.tenant_weight
        whole = sum(weights.values())
        total = max(1.0, self._faded(self._sum, now_ns))
        return [
            Lane(
                workload=key[0],
                tenant=key[1],
                running=each.running,
                waiting=each.waiting,
                blocks=each.blocks,
                used=min(1.0, self._faded(self._used.get(key, (0.0, 0)), now_ns) / total),
                due=weights[key[1]] / whole,
                oldest_ms=(now_ns - each.since_ns) // 1_000_000,
            )
            for key, each in here.items()
        ]

    @staticmethod
    def _faded(value: tuple[float, int], now_ns: int) -> float:
        return value[0] * exp(-max(0, now_ns - value[1]) / _FADE_NS)
