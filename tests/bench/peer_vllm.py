"""vLLM's CPU server as a peer, from an environment of its own, with a bf16 directory.

Its threads are bound as asked: on few cores its own default keeps one core for its front, which wins
or loses by load, so both are worth measuring.  README.md says how to build the environment.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peer import HttpPeer, Program, present
from tests.bench.server import free_port

NAME, MODEL = "vllm", "peer"
VERSIONS = (
    "from importlib.metadata import version as v; print('vllm', v('vllm'), 'torch', v('torch'))"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """`threads_bind` and `preload` are vLLM's documented CPU settings; kv_gib is its KV space."""

    venv: Path
    model_dir: Path
    threads_bind: str = "auto"
    kv_gib: int = 4
    context_tokens: int = 8192
    preload: tuple[str, ...] = ()


def make_vllm(settings: Settings, log_path: Path) -> HttpPeer:
    present(
        settings.venv / "bin" / "vllm",
        settings.model_dir / "config.json",
        *(Path(library) for library in settings.preload),
        step="vLLM",
    )
    port = free_port()
    bound = f"bf16, threads bound {settings.threads_bind}"
    return HttpPeer(
        NAME,
        f"http://127.0.0.1:{port}/v1",
        MODEL,
        f"{_versions(settings.venv)}, {bound}",
        Program(command(settings, port), log_path, environment(settings)),
    )


def command(settings: Settings, port: int) -> list[str]:
    return [
        str(settings.venv / "bin" / "vllm"), "serve", str(settings.model_dir),
        "--served-model-name", MODEL,
        "--dtype", "bfloat16",
        "--host", "127.0.0.1",
        "--port", str(port),
        "--max-model-len", str(settings.context_tokens),
    ]  # fmt: skip


def environment(settings: Settings) -> dict[str, str]:
    found = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": settings.threads_bind,
    }
    if settings.preload:
        found["LD_PRELOAD"] = ":".join(settings.preload)
    return found


def _versions(venv: Path) -> str:
    done = subprocess.run(
        [str(venv / "bin" / "python"), "-c", VERSIONS],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.strip() or "vllm, version unknown"
