"""vLLM's CPU server as a peer, from an environment of its own: start, pause, resume, end.

Paused (SIGSTOP) while another is measured, so that nothing else runs.  Its threads are bound as
asked: on few cores its own default keeps one core for its front, which wins or loses by load, so
both are worth measuring.  README.md says how to build the environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.bench.admin import until
from tests.bench.framing import WireError
from tests.bench.processes import descendants, end, signal_family
from tests.bench.server import free_port
from tests.bench.wire import Client, Endpoint

READY_S_MAX = 600.0  # it compiles on its first start
STOP_S_MAX = 60.0
MODEL = "peer"


@dataclass(frozen=True, slots=True)
class Settings:
    """`threads_bind` and `preload` are vLLM's documented CPU settings; kv_gib is its KV space."""

    venv: Path
    model_dir: Path
    threads_bind: str = "auto"
    kv_gib: int = 4
    context_tokens: int = 8192
    preload: tuple[str, ...] = ()


@dataclass(slots=True)
class VllmServer:
    settings: Settings
    port: int
    log_path: Path
    ready_s: float | None = None
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    def prepare(cls, settings: Settings, log_path: Path) -> VllmServer:
        for path in (settings.venv / "bin" / "vllm", settings.model_dir / "config.json"):
            if not path.exists():
                raise FileNotFoundError(f"expected {path}; see tests/bench/README.md, peers")
        return cls(settings, free_port(), log_path)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def version(self) -> str:
        done = subprocess.run(
            [
                str(self.settings.venv / "bin" / "python"),
                "-c",
                "from importlib.metadata import version as v; print('vllm', v('vllm'), 'torch', v('torch'))",
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout.strip()

    async def started(self) -> float:
        """Ready, after so many seconds.  RuntimeError that names the log if it never is."""
        started = time.perf_counter()
        process = self._process = self._launched()

        async def healthy_or_dead() -> bool:
            return process.poll() is not None or await self._healthy()

        took_s = await until(healthy_or_dead, deadline_s=READY_S_MAX)
        if took_s is None or process.poll() is not None:
            self.stop()
            raise RuntimeError(f"vLLM did not become ready; see {self.log_path}")
        self.ready_s = time.perf_counter() - started
        return self.ready_s

    def _launched(self) -> subprocess.Popen[bytes]:
        settings = self.settings
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_gib),
            "VLLM_CPU_OMP_THREADS_BIND": settings.threads_bind,
        }
        if settings.preload:
            environment["LD_PRELOAD"] = ":".join(settings.preload)
        command = [str(settings.venv / "bin" / "vllm"), "serve", str(settings.model_dir)]
        command += ["--served-model-name", MODEL, "--dtype", "bfloat16"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--max-model-len", str(settings.context_tokens)]
        with self.log_path.open("wb") as log:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _healthy(self) -> bool:
        client = Client(Endpoint("127.0.0.1", self.port))
        try:
            async with client.request("GET", "/health") as reply:
                await reply.read()
                return reply.status == 200
        except (OSError, WireError, TimeoutError):
            return False
        finally:
            client.close()

    def pause(self) -> None:
        assert self._process is not None
        signal_family(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        signal_family(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        family = descendants(process.pid)
        self.resume()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S_MAX)
        end(family)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
