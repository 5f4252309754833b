"""An executor process that computes nothing: `python -m tests.bench.fake_executor --socket PATH`.

It keeps the contract over the real socket, so that the gateway's side of it is measured too.  It says one
letter until a request has what was reserved, all at once, or in `--steps` reports that are `--step-ms`
apart.  What comes in one read is answered in one report, as by a step of an engine.
Refuses to know: tenants, HTTP, what anybody measures.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from executor.contract import (
    Abort,
    Cause,
    Command,
    Emitted,
    Ended,
    Gauges,
    Listed,
    ListKept,
    Look,
    Measure,
    Purge,
    Purged,
    Ready,
    Revoke,
    Revoked,
    Submit,
)
from executor.echo_card import echo_card
from executor.outbox import Outbox
from executor.wire import decode_command, encode_message

CONTEXT_TOKENS, KV_BLOCKS = 4096, 4096
LETTER = ord("a")
_LENGTH = struct.Struct(">I")
_US = 0  # the one owner of this connection's outbox


@dataclass(frozen=True, slots=True)
class Pace:
    """How an answer's tokens come: all at once, where no time lies between the steps."""

    steps: int = 1
    step_ms: float = 0.0

    @property
    def constant_ms(self) -> float:
        """From a request to its last token: nothing of it is the gateway's."""
        return self.steps * self.step_ms


@dataclass(slots=True)
class _Running:
    job: Submit
    said: int = 0
    steps: int = 0


class Wire(asyncio.Protocol):
    """One gateway's connection."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._buffer = bytearray()
        self._running: dict[int, _Running] = {}
        self._outbox = Outbox()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        card = echo_card(context_tokens=CONTEXT_TOKENS, kv_blocks=KV_BLOCKS)
        self._transport.write(encode_message(Ready(card=card)))

    def connection_lost(self, _: Exception | None) -> None:
        self._running.clear()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            command = decode_command(bytes(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
            self._take(command)
        self._report()

    def _take(self, command: Command) -> None:
        match command:
            case Submit(request=number):
                self._running[number] = _Running(command)
                self._step_later(number)
            case Abort(request=number):
                if number in self._running:
                    self._end(number, Cause.ABORTED)
            case Look(tenant=tenant):
                self._outbox.look(_US, tenant)
            case Measure():
                self._outbox.measure(_US)
            case Revoke(number=number):
                self._outbox.answer(_US, Revoked(number=number, entries=0, ended=0, zeroed=True))
            case Purge(number=number):
                self._outbox.answer(_US, Purged(number=number, entries=0, ended=0, zeroed=True))
            case ListKept(number=number):
                self._outbox.answer(_US, Listed(number=number, rows=()))
            case _:
                pass  # terms and quotas: nothing is scheduled, nothing is kept

    def _step_later(self, number: int) -> None:
        if not self._pace.step_ms:
            self._step(number, self._pace.steps)
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self._pace.step_ms / 1000, self._woken, number)

    def _woken(self, number: int) -> None:
        if (running := self._running.get(number)) is not None:
            self._step(number, running.steps + 1)
            self._report()

    def _step(self, number: int, upto: int) -> None:
        """Its part of the answer, and after the last the last word."""
        running = self._running[number]
        running.steps = upto
        wanted = running.job.max_new_tokens * upto // self._pace.steps
        if wanted > running.said:
            tokens = (LETTER,) * (wanted - running.said)
            self._outbox.say(_US, Emitted(request=number, tokens=tokens))
            running.said = wanted
        if upto == self._pace.steps:
            self._end(number, Cause.LENGTH)
        else:
            self._step_later(number)

    def _end(self, number: int, cause: Cause) -> None:
        running = self._running.pop(number)
        self._outbox.say(
            _US,
            Ended(
                request=number,
                cause=cause,
                prefilled=len(running.job.prompt) if running.said else 0,
                generated=running.said,
            ),
        )

    def _report(self) -> None:
        gauges = Gauges(running=len(self._running), blocks_total=KV_BLOCKS, blocks_free=KV_BLOCKS)
        for report in self._outbox.reports(gauges, tuple).values():
            self._transport.write(encode_message(report))


async def serve(path: Path, pace: Pace) -> None:
    """Until whoever started us is gone, or asks."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    loop.add_reader(sys.stdin.fileno(), over.set)  # nobody writes to it: what comes is its end
    server = await loop.create_unix_server(lambda: Wire(pace), str(path))
    path.chmod(0o600)
    await over.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fake_executor")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=0.0)
    options = parser.parse_args()
    asyncio.run(serve(options.socket, Pace(options.steps, options.step_ms)))


if __name__ == "__main__":
    main()
