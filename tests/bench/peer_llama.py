"""llama.cpp's `llama-server` as a peer, on the very file that we serve.

As many slots as the widest run has streams, each with the context it needs; continuous batching is
its default; nothing of a prompt is kept from one request to the next, so that its work is ours.
README.md says how to build it.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peer import HttpPeer, Program, present
from tests.bench.runs import LONG_OUTPUT_TOKENS, Load
from tests.bench.server import free_port

NAME, MODEL = "llama.cpp", "peer"
_ROUND = 256  # what it rounds a slot's context up to by itself


@dataclass(frozen=True, slots=True)
class Settings:
    """`arguments` go to it as they are, after ours."""

    server: Path
    model: Path
    threads: int
    arguments: tuple[str, ...] = ()


def make_llama(settings: Settings, load: Load, log_path: Path) -> HttpPeer:
    present(settings.server, settings.model, step="llama.cpp")
    if not settings.model.is_file():
        raise FileNotFoundError(
            f"{settings.model} is no GGUF file, and llama.cpp reads no other; see --model-path"
        )
    port = free_port()
    return HttpPeer(
        NAME,
        f"http://127.0.0.1:{port}/v1",
        MODEL,
        f"{_version(settings.server)}, {settings.model.name}, {settings.threads} threads",
        Program(command(settings, load, port), log_path),
    )


def command(settings: Settings, load: Load, port: int) -> list[str]:
    slots = max(load.concurrencies)
    longest = max(
        load.input_tokens + load.output_tokens, (load.long_tokens or 0) + LONG_OUTPUT_TOKENS
    )
    each = -(-(longest + 1) // _ROUND) * _ROUND
    return [
        str(settings.server),
        "--model", str(settings.model),
        "--alias", MODEL,
        "--host", "127.0.0.1",
        "--port", str(port),
        "--threads", str(settings.threads),
        "--parallel", str(slots),
        "--ctx-size", str(slots * each),
        "--cont-batching",
        "--no-cache-prompt",
        "--cache-ram", "0",
        "--no-ui",
        "--offline",
        *settings.arguments,
    ]  # fmt: skip


def _version(server: Path) -> str:
    """It says so on standard error."""
    done = subprocess.run(
        [str(server), "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    first = (done.stderr or done.stdout).strip().splitlines()[:1]
    return f"llama.cpp {first[0] if first else 'of unknown version'}"
