"""What a test asks of any client, and what it hears: one shape, however the client's own library names it.

A client of JavaScript is a process of ours that reads asks and writes what came of them, a line of JSON each
(node/driver.mjs).  Refuses to know: the server.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, Any, Protocol

import msgspec

from tests.clients.node_install import NODE, SCRIPTS, installed

ANSWER_S_MAX = 90.0
Message = dict[str, Any]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    base_url: str
    key: str
    model: str
    messages: list[Message]
    api: str = "chat"
    stream: bool = False
    usage: bool = False
    """Ask a stream for its usage."""
    retries: int = 0
    max_tokens: int | None = None
    temperature: float | None = None
    schema: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    leave_after: int | None = None
    """Leave the stream after so many pieces of text."""
    times: int = 1


class Call(msgspec.Struct, frozen=True):
    name: str
    arguments: str

    def read(self) -> Any:
        return msgspec.json.decode(self.arguments)


class Answer(msgspec.Struct, frozen=True):
    text: str = ""
    finish: str | None = None
    usage: tuple[int, int] | None = None
    """Tokens of the prompt and of the answer."""
    calls: list[Call] = []
    pieces: int = 0
    """How many deltas of text came."""
    left: bool = False


class Refused(msgspec.Struct, frozen=True):
    """An error, as the client shows it to who uses it."""

    kind: str
    status: int | None = None
    type: str | None = None
    code: str | None = None
    param: str | None = None
    message: str = ""


class Told(msgspec.Struct, frozen=True):
    answer: Answer | None = None
    refused: Refused | None = None


class Client(Protocol):
    def ask(self, ask: Ask) -> list[Told]:
        """As many as `ask.times`, in parallel."""
        ...


@dataclass
class NodeClient:
    """A script of node/ at work."""

    process: subprocess.Popen[bytes]
    complaints: IO[bytes] = field(repr=False)

    def ask(self, ask: Ask) -> list[Told]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = Timer(ANSWER_S_MAX, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(msgspec.json.encode(ask) + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self.complaints.seek(0)
            raise AssertionError(f"the client died: {self.complaints.read()[-4000:]!r}")
        return msgspec.json.decode(line, type=list[Told])


@contextmanager
def node_client(script: str) -> Iterator[NodeClient]:
    with TemporaryFile() as complaints:
        process = subprocess.Popen(
            [NODE, "--import", str(SCRIPTS / "resolve.mjs"), str(SCRIPTS / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env={"PATH": os.environ["PATH"], "LOCKGATE_CLIENTS": str(Path(installed()))},
        )
        with process:
            try:
                yield NodeClient(process, complaints)
            finally:
                process.kill()
