"""A bench run against a server: warm up, measure each concurrency, hold the ledger to it.

`Subject` is anything that serves completions; only a Lockgate has an admin listener, and then cost
and ledger are part of each row.  Refuses to know: printing, who started the server.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.bench.admin import Admin, Status, until_idle
from tests.bench.figures import Answer, Row, median
from tests.bench.ledger import Verdict, check
from tests.bench.load import Shape, ask, closed_loop, measure
from tests.bench.processes import Cost
from tests.bench.wire import Client, Endpoint

WARM_TOKENS = 8
LONG_REPEATS = 3
LONG_OUTPUT_TOKENS = 8  # the first may be half a character, which has no text yet
IDLE_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    base_url: str
    model: str
    token: str | None = field(default=None, repr=False)
    admin: Admin | None = None

    def client(self) -> Client:
        return Client(Endpoint.parse(self.base_url), self.token)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a subject.  `long_tokens`: the time to first token of prompts of that length,
    sent one at a time, is measured too; None: it is not."""

    concurrencies: tuple[int, ...] = (1, 8, 32)
    input_tokens: int = 128
    output_tokens: int = 64
    requests_per_stream: int = 4
    deadline_s: float = 300.0  # of one run at one concurrency
    seed: str = "bench"
    long_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One pass over all concurrencies."""

    rows: tuple[Row, ...]
    errors: tuple[str, ...]
    verdict: Verdict | None  # None: no ledger to ask, so the figures stand alone
    gateway_rss_mib: float | None = None
    executor_rss_mib: float | None = None
    long_ttft_ms: float | None = None


async def shape_of(subject: Subject, load: Load) -> Shape:
    """Token arrays, or words where the server refuses arrays.  RuntimeError where it refuses both."""
    client = subject.client()
    shape = Shape(subject.model, load.input_tokens, 1)
    answer = await ask(client, shape, f"{load.seed}/shape")
    if not answer.whole and answer.status == 400:
        shape = replace(shape, words=True)
        answer = await ask(client, shape, f"{load.seed}/shape")
    client.close()
    if not answer.whole:
        raise RuntimeError(f"{subject.name} does not serve the bench's requests: {answer.error}")
    return replace(shape, output_tokens=load.output_tokens)


async def one_round(subject: Subject, load: Load, shape: Shape, number: int) -> Round:
    """Prompts differ by round and concurrency: no run is answered from another's prefix cache."""
    admin = subject.admin
    before = await admin.usage() if admin else None
    status = await admin.status() if admin else None
    client = subject.client()
    answers: list[Answer] = []
    rows: list[Row] = []
    for concurrency in load.concurrencies:
        seed = f"{load.seed}/{number}/{concurrency}"
        answers += await closed_loop(
            [client],
            replace(shape, output_tokens=WARM_TOKENS),
            concurrency=concurrency,
            requests=concurrency,
            seed=f"{seed}/warm",
            deadline_s=load.deadline_s,
        )
        costs = _costs(status)
        measured, new = await measure(
            [client],
            shape,
            concurrency=concurrency,
            requests=concurrency * load.requests_per_stream,
            seed=seed,
            deadline_s=load.deadline_s,
        )
        answers += new
        rows.append(_with_cost(measured, costs, _costs(status)))
    long = await _long(client, load, shape, number)
    answers += long
    client.close()
    verdict = None
    if admin is not None and before is not None and status is not None:
        _, left = await until_idle(admin, idle_tasks=status.tasks, deadline_s=IDLE_S_MAX)
        verdict = check(answers, (await admin.usage()).since(before), left)
    after = _costs(status)
    return Round(
        rows=tuple(rows),
        errors=tuple(a.error or "?" for a in answers if not a.whole),
        verdict=verdict,
        gateway_rss_mib=after[0].rss_mib if after else None,
        executor_rss_mib=after[1].rss_mib if after else None,
        long_ttft_ms=first_token_ms(long),
    )


async def _long(client: Client, load: Load, shape: Shape, number: int) -> list[Answer]:
    """Long prompts one at a time, and one before them to warm up."""
    if load.long_tokens is None:
        return []
    long = replace(shape, input_tokens=load.long_tokens, output_tokens=LONG_OUTPUT_TOKENS)
    return [
        await ask(client, long, long_seed(load, number, each)) for each in range(LONG_REPEATS + 1)
    ]


def long_seed(load: Load, number: int, each: int) -> str:
    return f"{load.seed}/{number}/long/{each}"


def first_token_ms(answers: Sequence[Answer]) -> float | None:
    """The median of all but the first, which warmed up; None where none was whole."""
    found = [a.first_s - a.sent_s for a in answers[1:] if a.whole and a.first_s is not None]
    return statistics.median(found) * 1000 if found else None


def summary(rounds: Sequence[Round]) -> tuple[Row, ...]:
    """The median row of each concurrency over all rounds."""
    return tuple(median(rows) for rows in zip(*(r.rows for r in rounds), strict=True))


def _costs(status: Status | None) -> tuple[Cost, Cost] | None:
    if status is None or status.executor.pid is None:
        return None
    return Cost.of(status.pid), Cost.of(status.executor.pid)


def _with_cost(
    measured: Row, before: tuple[Cost, Cost] | None, after: tuple[Cost, Cost] | None
) -> Row:
    if before is None or after is None:
        return measured
    gateway_s, executor_s = (b.cpu_s - a.cpu_s for a, b in zip(before, after, strict=True))
    return replace(
        measured,
        gateway_cpu_ms=gateway_s * 1000 / measured.requests,
        executor_cpu_share=executor_s / measured.wall_s,
    )
