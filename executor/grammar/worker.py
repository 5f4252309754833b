"""`python -m executor.grammar.worker FD`: the process from which a process for each grammar is forked.

It reads the tokenizer once and then waits for sockets; for each one it forks.  The child compiles one
grammar and answers with one mask after another, within limits that the kernel keeps: processor time
(`ITIMER_PROF`, whose signal ends it inside the compiler too), wall time, address space.  So a grammar
that is too costly, or breaks the compiler, ends its own process and nothing else, and what it left in
memory is gone with it.

Refuses to know: logits, requests, users.  Says nothing on standard error: a panic would quote the
grammar.  Source: API.md §6 (compile in a process with a deadline), SECURITY.md A5.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Final

import msgspec
from llguidance import LLMatcher, LLTokenizer

from executor.grammar import source
from executor.grammar.frames import Alive, Compile, Frames, Mask, Next, Refused, Word, encode, order
from executor.grammar.source import BadGrammar
from executor.grammar.worker_setup import EXIT_TOKENIZER, Setup
from executor.undumped import forbid_dumps

SETUP_BYTES_MAX: Final = 64 * 2**20
NICE: Final = 10
"""Behind the model, which it would slow down, and in front of nothing that waits for it alone."""
IDLE_AFTER_CPU_S: Final = 0.05
"""What compiles for longer gets only what nobody else wants: three times what an ordinary large schema
takes, and a tenth of what ends it."""
_LOOK_EVERY_S: Final = 0.01
_RECEIVE_BYTES: Final = 65_536


@dataclass(slots=True)
class Allowance:
    """Processor time that is left: `burst_ms` at most, `mask_ms` more with each token.  Whatever runs
    between `begin` and `end` and takes longer ends the process."""

    setup: Setup
    left_s: float = 0.0

    def begin_compile(self) -> None:
        self._begin(self.setup.compile_cpu_ms / 1000)

    def begin_mask(self) -> None:
        burst_s = self.setup.burst_cpu_ms / 1000
        self._begin(min(burst_s, self.left_s + self.setup.mask_cpu_ms / 1000))

    def end_compile(self) -> None:
        self.end()
        self.left_s = self.setup.burst_cpu_ms / 1000

    def end(self) -> None:
        self.left_s = signal.setitimer(signal.ITIMER_PROF, 0)[0]
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _begin(self, cpu_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.setup.wall_ms / 1000)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)


def main(arguments: list[str]) -> int:
    forbid_dumps()  # what it compiles is a customer's
    line = socket.socket(fileno=int(arguments[0]))
    os.nice(NICE)
    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    setup = _setup(line)
    if setup is None:
        return 0
    try:
        tokenizer = LLTokenizer(
            setup.tokenizer_json.decode(),
            n_vocab=setup.vocab_size,
            eos_token=list(setup.end_tokens),
        )
    except (ValueError, RuntimeError):
        return EXIT_TOKENIZER
    gc.collect()
    gc.freeze()  # what is never looked at again is never copied into a child
    while True:
        _, sockets, _, _ = socket.recv_fds(line, 1, 1)
        if not sockets:
            return 0  # the executor is gone
        if os.fork() == 0:
            line.close()
            _child(socket.socket(fileno=sockets[0]), tokenizer, setup)
        os.close(sockets[0])


def _setup(line: socket.socket) -> Setup | None:
    """Not a byte further: what comes behind carries a socket, which a plain read would lose."""
    size = int.from_bytes(line.recv(4, socket.MSG_WAITALL), "big")
    body = line.recv(size, socket.MSG_WAITALL) if 0 < size <= SETUP_BYTES_MAX else b""
    return msgspec.msgpack.decode(body, type=Setup) if len(body) == size > 0 else None


def _child(channel: socket.socket, tokenizer: LLTokenizer, setup: Setup) -> None:
    """Never returns."""
    try:
        compiled = threading.Event()
        threading.Thread(target=_step_back, args=(compiled,), daemon=True).start()
        _limit(setup.memory_bytes)
        channel.sendall(encode(Alive()))
        serve(channel, tokenizer, setup, compiled)
    except BaseException:  # noqa: BLE001 — a forked copy of the parent must not go on as the parent
        os._exit(1)
    os._exit(0)


def _step_back(compiled: threading.Event) -> None:
    """While the main thread is in the compiler, which lets go of the interpreter."""
    while not compiled.wait(_LOOK_EVERY_S):
        if process_time() > IDLE_AFTER_CPU_S:
            if hasattr(os, "SCHED_IDLE"):
                os.sched_setscheduler(os.getpid(), os.SCHED_IDLE, os.sched_param(0))
            return


def _limit(memory_bytes: int) -> None:
    def lower(which: int, bound: int) -> None:
        hard = resource.getrlimit(which)[1]
        most = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(which, (most, most))

    lower(resource.RLIMIT_FSIZE, 0)
    lower(resource.RLIMIT_NOFILE, 16)
    lower(resource.RLIMIT_AS, _address_bytes() + memory_bytes)


def _address_bytes() -> int:
    """What is mapped already, the interpreter and the tokenizer; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return resource.RLIM_INFINITY >> 1


def serve(
    channel: socket.socket, tokenizer: LLTokenizer, setup: Setup, done: threading.Event
) -> None:
    """One grammar, from its text to the end of its stream."""
    frames, allowance = Frames(), Allowance(setup)
    matcher: LLMatcher | None = None
    while data := channel.recv(_RECEIVE_BYTES):
        for body in frames.feed(data):
            said = order(body)
            if isinstance(said, Compile):
                allowance.begin_compile()
                answer: Word
                try:
                    matcher, answer = compiled(tokenizer, said)
                except BadGrammar as why:
                    answer = Refused(str(why))
                allowance.end_compile()
                done.set()
            else:
                assert matcher is not None, "a token before a grammar"
                allowance.begin_mask()
                answer = after(matcher, said)
                allowance.end()
            channel.sendall(encode(answer))


def compiled(tokenizer: LLTokenizer, said: Compile) -> tuple[LLMatcher, Mask]:
    """Raises BadGrammar."""
    text = source.source(said.grammar)
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=source.LIMITS)
    if matcher.is_error():
        raise BadGrammar(source.reason(matcher.get_error()))
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        complex_ = matcher.stop_reason() in {"ParserTooComplex", "LexerTooComplex"}
        raise BadGrammar("it is too complex" if complex_ else "it allows no answer at all")
    return matcher, Mask(mask)


def after(matcher: LLMatcher, said: Next) -> Word:
    matcher.consume_token(said.token)
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        return Refused("it became too complex in the course of the answer")
    return Mask(mask)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
