"""`python -m executor`: the executor process.  Started by the gateway, which holds the other end of
its standard input; when that closes, or on SIGTERM, this process ends.

Refuses to know: gateways, configuration files.  Logs JSON to standard error, without token ids.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import NoReturn

import structlog

from executor.batch import Runner
from executor.contract import ModelCard
from executor.numerics import Numerics
from executor.scheduler.batching import Batching, BatchRule
from executor.server import Mailbox, Progress, serve
from executor.settings import POOL_PART, Policy, Settings
from executor.undumped import forbid_dumps

EXIT_FAILED = 70
LAST_WORDS_S = 10.0
"""As long as the longest step."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    mailbox = Mailbox()
    prepare_process(mailbox.close)

    settings = Settings(
        seqs_max=options.max_seqs,
        waiting_max=options.max_waiting,
        step_ms_max=options.step_ms_max,
        pool_part=options.pool_part,
        speculation=options.speculation == "on",
        policy=Policy(options.policy),
        batching=BatchRule(Batching(options.batching), options.batch_size, options.batch_wait_ms),
    )

    def load(progress: Progress) -> tuple[ModelCard, Runner]:
        from executor.model_runner import load as load_model

        return load_model(
            options.model,
            device=options.device,
            numerics=options.numerics,
            dtype=options.dtype,
            context_tokens=options.context_tokens,
            kv_bytes=options.kv_memory,
            threads=options.threads,
            rows_max=settings.seqs_max,
            step_tokens_max=settings.step_tokens_max,
            progress=progress,
        )

    serve(load, options.socket, settings=settings, clock_ns=monotonic_ns, mailbox=mailbox)
    return 0 if mailbox.closed else EXIT_FAILED


def prepare_process(orphaned: Callable[[], bool] = lambda: False) -> None:
    """Logs, signals, no dumps, and the watch on the parent: all that is the process's own.  `orphaned`:
    the parent is no more; whether somebody has last words to write, and will end the process then."""
    forbid_dumps()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    tell_crashes()
    signal.signal(signal.SIGTERM, _terminate)
    threading.Thread(target=_follow_parent, args=(orphaned,), name="parent", daemon=True).start()


def tell_crashes() -> None:
    """The last words of a thread or of the process: a kind and places.  Python's own would show the
    message, which may hold token ids."""

    def tell(fault: BaseException | None) -> None:
        at = (
            [
                f"{Path(f.filename).name}:{f.lineno}"
                for f in traceback.extract_tb(fault.__traceback__)
            ]
            if fault
            else []
        )
        structlog.get_logger().error("crashed", kind=type(fault).__name__, at=at)

    sys.excepthook = lambda _kind, fault, _trace: tell(fault)
    threading.excepthook = lambda crash: tell(crash.exc_value)


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(0)


def _follow_parent(orphaned: Callable[[], bool]) -> None:
    """The parent never writes; the end of its pipe is its death.  All that is worth an orderly end is what
    ran for it (`last_words`), and not for long: KV memory is anonymous, and the book is the gateway's."""
    while os.read(0, 4096):
        pass
    if orphaned():
        time.sleep(LAST_WORDS_S)
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m executor", description="Serve one model.")
    add = parser.add_argument
    add("--socket", type=Path, required=True, help="Unix socket to open, in a folder of mode 0700")
    add("--model", type=Path, required=True, help="GGUF file or Hugging Face directory")
    add("--context-tokens", type=_at_least_one, default=None, help="default: the model's own")
    add("--kv-memory", type=_bytes_or_auto, default=None, help="bytes, or auto")
    add("--numerics", choices=tuple(Numerics), default="fast")
    add("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--threads", type=_at_least_one, default=None)
    add("--max-seqs", type=_at_least_one, default=64, help="sequences in one step")
    add("--max-waiting", type=_at_least_one, default=4096, help="requests in the queue")
    add("--step-ms-max", type=_at_least_one, default=200, help="what a step with prompts may take")
    add("--policy", choices=tuple(Policy), default=Policy.FAIR, help="who comes next")
    add("--batching", choices=tuple(Batching), default=Batching.CONTINUOUS, help="when to join")
    add("--batch-size", type=_at_least_one, default=16, help="of static and dynamic batches")
    add("--batch-wait-ms", type=_at_least_one, default=50, help="of dynamic batches")
    add(
        "--pool-part",
        type=_part,
        default=POOL_PART,
        help="of KV memory, for what is kept of prompts",
    )
    add("--speculation", choices=("on", "off"), default="on", help="guess ahead where it pays")
    return parser


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _part(text: str) -> float:
    part = float(text)
    if not 0 <= part <= 0.9:
        raise ValueError
    return part


def _bytes_or_auto(text: str) -> int | None:
    return None if text == "auto" else _at_least_one(text)


if __name__ == "__main__":
    sys.exit(main())
