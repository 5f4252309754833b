"""The lines in which connections wait, in a time of their own: order, places, and what operators see."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import cast

import pytest

from gateway.connections import Connections, Counts
from gateway.listen import Bound
from gateway.metrics_door import ConnectionGauges
from gateway.wire_guard import Fault


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now_s + delay_s, call, (), asyncio.get_event_loop())
        self.due.append((self.now_s + delay_s, call, handle))
        return handle

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        for each in [each for each in self.due if each[0] <= self.now_s]:
            self.due.remove(each)
            if not each[2].cancelled():
                each[1]()


class Peer:
    def __init__(self, lines: Connections) -> None:
        self.lines = lines
        self.leaving = False
        self.aborted = False
        self.unseen = False
        self.working = False
        self.said: Fault | None = None

    def part(self, why: Fault | None) -> bool:
        assert not self.working
        assert not self.leaving
        if self.unseen:
            return False
        self.lines.parts(self)
        self.leaving, self.said = True, why
        return True

    def abort(self) -> None:
        assert not self.aborted
        self.aborted = True


@pytest.mark.parametrize("seed", range(20))
def test_whatever_connections_do_the_lines_are_kept(seed: int) -> None:
    async def scene() -> None:
        rng = random.Random(seed)
        lines = Connections(most=8, keep_alive_s=10, head_grace_s=2)
        clock = Clock()
        lines._loop = clock  # type: ignore[assignment]
        peers: list[Peer] = []
        refused = 0
        for _ in range(1500):
            clock.passes(rng.choice((0.0, 0.1, 1.0)))
            stay = [each for each in peers if not each.leaving]
            who = rng.choice(stay) if stay else None
            match rng.choice(
                ("comes", "comes", "works", "works", "answered", "drips", "sees", "gone")
            ):
                case "comes":
                    oldest = cast("Peer | None", next(iter(lines._kept), None))
                    slow_heads = [
                        cast("Peer", each)
                        for each, since_s in lines._opening.items()
                        if since_s <= clock.now_s - 2
                    ]
                    full = len(stay) == 8
                    if not lines.has_room():
                        refused += 1
                        assert all(each.working or each.unseen for each in stay)
                        continue
                    if full and slow_heads and not any(each.unseen for each in slow_heads):
                        assert slow_heads[0] in [each for each in peers if each.leaving]
                    elif full and oldest is not None and not slow_heads and not oldest.unseen:
                        assert oldest.leaving
                    peers.append(Peer(lines))
                    lines.comes(peers[-1])
                case "works" if who and not who.working:
                    who.working, who.unseen = True, False
                    lines.works(who)
                case "answered" if who and who.working:
                    who.working, who.unseen = False, rng.random() < 0.2
                    lines.keeps(who)
                case "drips" if who and not who.working:
                    who.unseen = False
                    lines.opens(who)
                case "sees" if who and not who.working:
                    who.unseen = True
                case "gone" if peers:
                    who = rng.choice(peers)
                    peers.remove(who)
                    lines.gone(who)
                case _:
                    pass
            counts = lines.counts()
            stay = [each for each in peers if not each.leaving]
            assert len(stay) <= 8
            assert counts.opening + counts.idle + counts.busy == len(stay)
            assert counts.busy >= sum(each.working for each in stay)
            assert counts.leaving == len(peers) - len(stay)
            assert sum(each.leaving and not each.aborted for each in peers) <= 1
            assert list(lines._kept.values()) == sorted(lines._kept.values())
            assert all(clock.now_s - since_s < 10 for since_s in lines._kept.values())
        assert refused > 0
        lines.close()
        for each in peers:
            each.unseen = False
            if not each.working and not each.leaving:
                lines.keeps(each)
        assert not lines._kept

    asyncio.run(scene())


def test_operators_see_what_connections_do() -> None:
    counts = Counts(opening=1, idle=2, busy=3, leaving=4, made_room=5)
    seen = {
        (sample.name, *sample.labels.values()): sample.value
        for family in ConnectionGauges([Bound("public", "::1", 1, lambda: counts)]).collect()
        for sample in family.samples
    }
    assert seen == {
        ("lockgate_connections", "public", "opening"): 1,
        ("lockgate_connections", "public", "idle"): 2,
        ("lockgate_connections", "public", "busy"): 3,
        ("lockgate_connections", "public", "leaving"): 4,
        ("lockgate_connections_displaced_total", "public"): 5,
    }
