"""The worker process of the desk: started, given its tokenizer, asked to fork, ended.

Refuses to know: grammars, requests.  Owned by the desk's thread.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from executor.grammar.worker_setup import EXIT_TOKENIZER, Setup

HIRE_EVERY_S: Final = 1.0
_ROOT: Final = Path(__file__).resolve().parents[1]
_SEND_S_MAX: Final = 30.0
_log = structlog.get_logger()


class Worker:
    """`line` is its socket while it is employed; readable means that it is gone.  `hires` counts them.
    `hopeless`: why no other will do better, a sentence."""

    def __init__(self, setup: Setup, clock_s: Callable[[], float]) -> None:
        self._setup = msgspec.msgpack.encode(setup)
        self._clock_s = clock_s
        self._process: subprocess.Popen[bytes] | None = None
        self._hired_s: float | None = None
        self.hires = 0
        self.line: socket.socket | None = None
        self.hopeless = "" if setup.end_tokens else "the model names no token that ends an answer"

    def hire(self) -> socket.socket | None:
        """Start one and return its line, unless the last was started a moment ago."""
        assert self.line is None
        now_s = self._clock_s()
        if self._hired_s is not None and now_s - self._hired_s < HIRE_EVERY_S:
            return None
        self._hired_s = now_s
        self.hires += 1
        ours, theirs = socket.socketpair()
        ours.settimeout(_SEND_S_MAX)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "executor.grammar.worker", str(theirs.fileno())],
                    cwd=_ROOT,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a compiler that panics quotes the grammar
                )
            ours.sendall(len(self._setup).to_bytes(4, "big") + self._setup)
        except OSError as fault:
            _log.error("grammar_worker_not_started", kind=type(fault).__name__)
            ours.close()
            self._reap()
            return None
        self.line = ours
        return ours

    def fork(self, theirs: socket.socket) -> None:
        """Have a process forked that owns `theirs`.  Says nothing if the worker is gone."""
        assert self.line is not None
        try:
            socket.send_fds(self.line, [b"f"], [theirs.fileno()])
        except OSError:
            _log.warning("grammar_worker_deaf")

    def dismiss(self) -> None:
        """End it, if it has not ended."""
        if self.line is None:
            return
        self.line.close()
        self.line = None
        status = self._reap()
        if status == EXIT_TOKENIZER:
            self.hopeless = (
                "answers of this model cannot be constrained: its tokenizer is not known"
            )
        if status:
            _log.error("grammar_worker_lost", status=status)

    def _reap(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            return process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
