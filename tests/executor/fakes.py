"""A model that remembers what was written where: its next token depends on every token of the
context as read back from the block table, so a wrong block, offset or order changes the output."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from time import monotonic_ns

import torch
from torch import Tensor

from executor.__main__ import EXIT_FAILED, prepare_process
from executor.batch import Batch, Row, Runner
from executor.choice import Ask, Choice
from executor.contract import (
    Abort,
    Command,
    Emitted,
    Ended,
    Listed,
    ListKept,
    Look,
    ModelCard,
    Purge,
    Purged,
    Quotas,
    Report,
    Revoke,
    Revoked,
    Sampling,
    Submit,
    Terms,
    Update,
    Workload,
)
from executor.cost import Rates, StepTimes
from executor.engine import Engine
from executor.inbox import Gone
from executor.life import Life
from executor.sampler import sample
from executor.scheduler.protocol import Limits, Scheduler
from executor.sequence import Sequence as Seq
from executor.server import Mailbox, Progress, serve
from executor.settings import Policy, Settings
from policies.scope.context import Context

FREE = Rates(step_ns=2e7, token_ns=0.0, token_context_ns=0.0)
"""A machine on which guesses cost nothing: all that there are are run."""
COMPUTES = Context(
    asked_digest=bytes(32),
    weights_digest=bytes(32),
    adapter_digest=None,
    dtype="float32",
    numerics="invariant",
    kernel_config="fake",
    block_tokens=4,
)
OPTIMIST = Settings(policy=Policy.FCFS, check_invariants=True)
"""Lets in what fits now, whatever it will grow to: so that somebody is put out."""
GREEDY = Sampling(temperature=0.0)
EMPTY = -1
torch.set_num_threads(1)  # rows of a few numbers; the cores are for others


class FakeRunner:
    """`before` is called with each batch before it runs: raise there, or put commands in.
    `habits`: how strongly the last token alone decides what follows; then it repeats itself."""

    def __init__(
        self,
        *,
        block_tokens: int = 4,
        kv_blocks: int = 16,
        vocab_size: int = 32,
        context_tokens: int = 64,
        habits: float = 0.0,
    ) -> None:
        self.habits = habits
        self.block_tokens = block_tokens
        self.kv_blocks = kv_blocks
        self.vocab_size = vocab_size
        self.context_tokens = context_tokens
        self.before: Callable[[Batch], None] = lambda _: None
        self.batches: list[list[tuple[int, int]]] = []  # (start, count) of each row
        self._memory = [[EMPTY] * block_tokens for _ in range(kv_blocks)]
        self._guessed: set[tuple[int, int]] = set()  # cells that may be written over

    def run(self, batch: Batch) -> Tensor:
        counts = [len(row.tokens) for row in batch.rows]
        assert counts
        assert all(counts)
        assert counts == sorted(counts, key=lambda count: count > 1), "rows of one token first"
        self.batches.append([(row.start, len(row.tokens)) for row in batch.rows])
        self.before(batch)
        for row in batch.rows:
            assert row.end <= self.context_tokens
            for place, token in enumerate(row.tokens, row.start):
                cell = (row.blocks[place // self.block_tokens], place % self.block_tokens)
                block = self._memory[cell[0]]
                assert block[cell[1]] == EMPTY or cell in self._guessed, "written over"
                block[cell[1]] = token
                self._guessed.discard(cell)
                if place >= row.end - row.drafted:
                    self._guessed.add(cell)
        wanted = [
            self._logits(row, end)
            for row in batch.rows
            for end in range(row.end + 1 - row.logit_rows, row.end + 1)
        ]
        return torch.tensor(wanted, dtype=torch.float32).reshape(len(wanted), self.vocab_size)

    def sample(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        return sample(logits, asks)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._memory[block] = [EMPTY] * self.block_tokens
            self._guessed -= {(block, at) for at in range(self.block_tokens)}

    def are_zero(self, blocks: Sequence[int]) -> bool:
        return all(token == EMPTY for block in blocks for token in self._memory[block])

    def is_wiped(self) -> bool:
        return all(token == EMPTY for block in self._memory for token in block)

    def _logits(self, row: Row, end: int) -> list[float]:
        context = [
            self._memory[row.blocks[p // self.block_tokens]][p % self.block_tokens]
            for p in range(end)
        ]
        return logits_of(context, self.vocab_size, self.habits)


def logits_of(context: Sequence[int], vocab_size: int, habits: float = 0.0) -> list[float]:
    assert EMPTY not in context, "read where nothing was written"
    whole, last = _digest(context), _digest(context[-1:]) if habits else b""
    return [
        whole[i % 64] / 32.0 + i / 1000 + (habits * last[i % 64] / 32.0 if habits else 0.0)
        for i in range(vocab_size)
    ]


def _digest(tokens: Sequence[int]) -> bytes:
    return blake2b(repr(list(tokens)).encode(), digest_size=64).digest()


class Clock:
    """Moves by `tick_ns` at each reading."""

    def __init__(self, tick_ns: int = 1_000_003) -> None:
        self.now_ns = 0
        self.tick_ns = tick_ns

    def __call__(self) -> int:
        self.now_ns += self.tick_ns
        return self.now_ns


class Harness:
    """An engine with its inbox, and everything that each request was told.  `model` runs instead of
    the fake, where there is one."""

    def __init__(
        self,
        runner: FakeRunner | None = None,
        *,
        settings: Settings | None = None,
        policy: Callable[[Limits], Scheduler[Seq]] | None = None,
        clock: Clock | None = None,
        times: StepTimes | None = None,
        model: Runner | None = None,
        computes: Context | None = None,
        life: Life | None = None,
    ) -> None:
        self.runner = runner or FakeRunner()
        self.clock = clock or Clock()
        self.inbox: deque[tuple[int, Command | Gone]] = deque()
        self.engine = Engine(
            model or self.runner,
            self._take,
            clock_ns=self.clock,
            settings=settings or Settings(check_invariants=True),
            policy=policy,
            times=times,
            computes=computes or COMPUTES,
            life=life,
        )
        self.heard: dict[tuple[int, int], list[Update]] = {}
        self.reports: list[Report] = []
        self.answers: list[Revoked | Purged] = []
        self.listed: list[Listed] = []

    def _take(self) -> list[tuple[int, Command | Gone]]:
        items = list(self.inbox)
        self.inbox.clear()
        return items

    def submit(self, job: Submit, owner: int = 0) -> None:
        self.inbox.append((owner, job))

    def terms(self, *workloads: Workload, owner: int = 0) -> None:
        self.inbox.append((owner, Terms(workloads=workloads)))

    def look(self, owner: int = 0, tenant: str | None = None) -> None:
        self.inbox.append((owner, Look(tenant=tenant)))

    def abort(self, request: int, owner: int = 0) -> None:
        self.inbox.append((owner, Abort(request=request)))

    def order(self, command: Revoke | Purge | ListKept | Quotas, owner: int = 0) -> None:
        self.inbox.append((owner, command))

    def step(self) -> dict[int, Report]:
        reports = self.engine.step()
        for owner, report in reports.items():
            self.reports.append(report)
            self.answers += [*report.revoked, *report.purged]
            self.listed += report.listed
            for update in report.updates:
                self.heard.setdefault((owner, update.request), []).append(update)
        return reports

    def run(self, steps_max: int = 5000) -> None:
        for _ in range(steps_max):
            if not self.inbox and not self.engine.busy:
                return
            self.step()
        raise AssertionError("it does not come to an end")

    def tokens(self, request: int, owner: int = 0) -> list[int]:
        said = self.heard.get((owner, request), [])
        return [token for update in said if isinstance(update, Emitted) for token in update.tokens]

    def ended(self, request: int, owner: int = 0) -> Ended:
        heard = self.heard.get((owner, request), [])
        ends = [update for update in heard if isinstance(update, Ended)]
        assert len(ends) == 1, "it ends once"
        assert heard[-1] is ends[0], "something was said after the last word"
        return ends[0]

    def assert_empty(self) -> None:
        gauges = self.engine.gauges
        assert (gauges.running, gauges.waiting) == (0, 0)
        assert gauges.blocks_free + gauges.kept_blocks == gauges.blocks_total
        kept = set(self.engine.keeper.cache._by_block)
        rest = [block for block in range(gauges.blocks_total) if block not in kept]
        assert len(kept) == gauges.kept_blocks
        assert self.runner.are_zero(rest)


def job(request: int = 1, prompt: Sequence[int] = (1, 2, 3), **fields: object) -> Submit:
    given = {"max_new_tokens": 8, "sampling": GREEDY, **fields}
    return Submit(request=request, prompt=tuple(prompt), **given)  # type: ignore[arg-type]


def card(runner: FakeRunner) -> ModelCard:
    return ModelCard(
        architecture="fake",
        dtype="fp32",
        numerics="invariant",
        vocab_size=runner.vocab_size,
        context_tokens=runner.context_tokens,
        block_tokens=runner.block_tokens,
        kv_blocks=runner.kv_blocks,
        tokenizer_json=b"{}",
        chat_template=None,
        weights_digest=bytes(32).hex(),
    )


def main() -> None:
    """A whole executor process around the fake: `--socket PATH`, and `--broken` cannot load."""
    arguments = sys.argv[1:]
    path = Path(arguments[arguments.index("--socket") + 1])
    mailbox = Mailbox()
    prepare_process(mailbox.close)
    runner = FakeRunner(kv_blocks=256, block_tokens=16, context_tokens=4000)

    def load(progress: Progress) -> tuple[ModelCard, FakeRunner]:
        progress("weights", 0.5)
        if "--broken" in arguments:
            raise ValueError("the file is no model; name a GGUF file")
        if "--dies" in arguments:
            runner.before = lambda _: os._exit(9)
        if "--fails" in arguments:
            runner.before = fail
        return card(runner), runner

    def fail(_: Batch) -> None:
        raise RuntimeError

    settings = Settings(pool_part=0.25, check_invariants=True)
    serve(load, path, settings=settings, clock_ns=monotonic_ns, mailbox=mailbox)
    sys.exit(0 if mailbox.closed else EXIT_FAILED)


ROOT = Path(__file__).parents[2]
COMMAND = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.executor.fakes import main; main()",
)
"""Started with `--socket PATH`: an argument list for `ExecutorProcess`."""
