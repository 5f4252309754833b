"""A job of the echo as it goes, and who has how much of the echo.  Refuses to know: turns' words, tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import groupby

from executor.contract import Lane, Submit
from executor.echo_card import BLOCK_TOKENS
from executor.turn import MailboxTurn


class Job:
    """A turn in line or speaking."""

    def __init__(self, job: Submit, turn: MailboxTurn, now_ns: int) -> None:
        self.job = job
        self.turn = turn
        self.submitted_ns = now_ns
        self.started_ns: int | None = None
        self.first_ns: int | None = None
        self.said_ns: int | None = None
        self.prefilled = self.cached = self.pinned = 0
        self.generated = 0
        self.device_ns = 0
        self.place: int | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def tenant(self) -> str:
        return self.job.share[0][0] if self.job.share else ""

    @property
    def weight(self) -> float:
        return self.job.share[0][1] if self.job.share else 1.0

    @property
    def lane(self) -> tuple[str, str]:
        return self.job.workload, self.tenant

    @property
    def blocks(self) -> int:
        """Reserved for the longest it may become: the echo has no preemption."""
        return -(-(len(self.job.prompt) + self.job.max_new_tokens) // BLOCK_TOKENS)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def lanes(running: list[Job], waiting: list[Job], now_ns: int) -> Iterator[Lane]:
    """Every job takes turns with every other, so what a lane has of the echo is its part of those that
    speak."""
    weights = {job.tenant: job.weight for job in (*running, *waiting)}
    speaking = set(map(id, running))
    everybody = sorted((*running, *waiting), key=lambda job: job.lane)
    for (workload, tenant), group in groupby(everybody, key=lambda job: job.lane):
        jobs = list(group)
        here = [job for job in jobs if id(job) in speaking]
        waits_ns = [now_ns - job.submitted_ns for job in jobs if id(job) not in speaking]
        yield Lane(
            workload=workload,
            tenant=tenant,
            running=len(here),
            waiting=len(waits_ns),
            blocks=sum(job.blocks for job in here),
            used=len(here) / max(1, len(running)),
            due=weights[tenant] / sum(weights.values()),
            oldest_ms=max(waits_ns, default=0) // 1_000_000,
        )
