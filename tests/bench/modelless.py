"""A whole Lockgate around an executor that computes nothing, for measuring the gateway alone.

    python -m tests.bench.modelless [--without book] [--without audit] [--profile FILE] --config FILE

Everything is the product's: command line, listeners, signatures, limits, the socket to an executor
process.  Patched, in this process of the bench and nowhere else (DESIGN.md, settled 16): which executor
is started and, with `--without`, that the book answers from nothing, the audit log keeps nothing, or nobody
is turned away at the door.
Refuses to know: load, figures.
"""

from __future__ import annotations

import argparse
import cProfile
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gateway import bootstrap, executors_start
from gateway.cli.serve import choose
from gateway.gate import Gate
from gateway.models_store import Found
from policies.facts import Meters
from policies.price import Charge
from policies.verdict import Allow
from security.audit import AuditEvent
from security.audit_log import AuditLog
from tenants.book import Book, Hold, HoldAsk, Settled, UsageRecord
from tests.bench.fake_executor import Pace

LEAN = ("book", "audit")
PARTS = (*LEAN, "door")


def without_model(pace: Pace) -> None:
    command = [sys.executable, "-m", "tests.bench.fake_executor"]
    command += ["--steps", str(pace.steps), "--step-ms", str(pace.step_ms)]
    patched: Any = executors_start
    patched.executor_command = lambda *_: command
    patched.fetch = lambda *_: Found(Path(__file__))


def without(parts: Iterable[str]) -> None:
    for part in parts:
        {"book": _without_book, "audit": _without_audit, "door": _without_door}[part]()


def _without_book() -> None:
    async def hold(_: Book, ask: HoldAsk) -> Allow[Hold]:
        return Allow(
            Hold(
                request_id=ask.request_id,
                dims=ask.dims,
                price_id=ask.price.id,
                output_tokens=ask.output_tokens,
                amount_nano_usd=0,
            )
        )

    async def settle(
        _: Book, request_id: str, meters: Meters, record: UsageRecord | None = None
    ) -> Settled:
        return Settled(Charge("", (), 0))

    async def void(_: Book, request_id: str, record: UsageRecord | None = None) -> bool:
        return True

    patched: Any = Book
    patched.hold, patched.settle, patched.void = hold, settle, void


def _without_audit() -> None:
    async def append(_: AuditLog, event: AuditEvent) -> int:
        return 0

    patched: Any = AuditLog
    patched.append = append


def _without_door() -> None:
    """All come in, and none waits for a turn."""

    async def enter(*_: object) -> None:
        pass

    patched: Any = Gate
    patched.enter = enter


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.modelless")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--without", action="append", choices=PARTS, default=[])
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--profile", type=Path, help="write what cProfile saw of the event loop")
    options = parser.parse_args()
    without_model(Pace(options.steps, options.step_ms))
    without(options.without)
    settings = choose(options.config, None, None, None)
    if options.profile is None:
        return bootstrap.run(settings)
    profile = cProfile.Profile()
    try:
        return profile.runcall(bootstrap.run, settings)
    finally:
        profile.dump_stats(options.profile)


if __name__ == "__main__":
    sys.exit(main())
