"""Start a Lockgate of our own, find out what it costs, end it: politely, or with `kill -9`.

It runs in a fresh state directory with a production configuration of `config`.  Ready time is from
the command to the first 200 of /ready.  Refuses to know: load, ledger.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.bench import config
from tests.bench.admin import Admin, is_ready, until
from tests.bench.issuer import Issuer

READY_S_MAX = 120.0
STOP_S_MAX = 30.0
REPOSITORY = Path(__file__).resolve().parents[2]
LOG_TAIL_CHARS = 4_000
PEOPLE = (("acme", "alice"), ("acme", "bob"), ("globex", "carol"))


@dataclass(frozen=True, slots=True)
class Site:
    """Where a server is and who may talk to it: all that load and scenarios need."""

    base_url: str
    admin_url: str
    tokens: Mapping[str, str] = field(repr=False)
    model: str = config.MODEL

    @property
    def admin(self) -> Admin:
        return Admin(self.admin_url, self.tokens["operator"])


def default_model() -> Path:
    """The first GGUF file that `deploy/dev.py` has fetched.  FileNotFoundError that says so."""
    models = REPOSITORY / "var" / "models"
    for path in sorted(models.glob("**/*.gguf")):
        return path
    raise FileNotFoundError(
        f"no GGUF file below {models}: name one by --model-path, or let deploy/dev.py fetch one"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True)
class Server:
    """Use as a context manager; may be started again after `kill`, on the same state."""

    site: Site
    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    issuer: Issuer = field(repr=False)
    keep: bool = False
    ready_s: float | None = None
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    def prepare(
        cls,
        *,
        model_path: str | None = None,
        numerics: str = "fast",
        threads: int | None = None,
        kv_memory: str = "auto",
        plan: config.Plan | None = None,
        models_dir: Path | None = None,
        people: Sequence[tuple[str, str]] = PEOPLE,
        more: str = "",
    ) -> Server:
        """Writes key set and configuration into a new temporary folder; starts nothing.  `people`: tenant and
        user of each token.  `more`: tables behind the configuration's own."""
        folder = Path(tempfile.mkdtemp(prefix="lockgate-bench-"))
        state_dir = folder / "state"
        state_dir.mkdir(mode=0o700)
        port, admin_port = free_port(), free_port()
        issuer = Issuer()
        issuer.write_jwks(folder / "jwks.json")
        (folder / "lockgate.toml").write_text(
            config.toml(
                state_dir=state_dir,
                jwks=folder / "jwks.json",
                port=port,
                admin_port=admin_port,
                numerics=numerics,
                kv_memory=kv_memory,
                plan=plan or config.Plan(),
                more=more,
            ),
            encoding="utf-8",
        )
        now_s = int(time.time())
        tokens = {
            f"{tenant}/{user}": issuer.token(tenant=tenant, user=user, now_s=now_s)
            for tenant, user in people
        }
        tokens["operator"] = issuer.token(
            tenant=None, user="operator", now_s=now_s, roles=["operator"]
        )
        command = [str(Path(sys.executable).with_name("lockgate")), "serve"]
        command += ["--config", str(folder / "lockgate.toml")]
        if model_path is not None:
            command += ["--model", model_path]
        if threads is not None:
            command += ["--threads", str(threads)]
        models = models_dir or REPOSITORY / "var" / "models"
        return cls(
            site=Site(f"http://127.0.0.1:{port}/v1", f"http://127.0.0.1:{admin_port}", tokens),
            command=tuple(command),
            folder=folder,
            environment={
                "LOCKGATE_MODELS_DIR": str(models),
                "PYTHONPATH": str(REPOSITORY),  # this tree, and what it starts in its turn
            },
            issuer=issuer,
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        return asyncio.run(self.started())

    async def started(self) -> float:
        """Ready, after so many seconds.  RuntimeError with the log's end if it never is."""
        assert self._process is None or self._process.poll() is not None
        started = time.perf_counter()
        process = self._process = self._launched()

        async def ready_or_dead() -> bool:
            return process.poll() is not None or await is_ready(self.site.base_url)

        took_s = await until(ready_or_dead, deadline_s=READY_S_MAX)
        if took_s is None or process.poll() is not None:
            self.stop()
            raise RuntimeError(f"the server did not become ready; its last words:\n{self.log()}")
        self.ready_s = time.perf_counter() - started
        return self.ready_s

    def _launched(self) -> subprocess.Popen[bytes]:
        with (self.folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                self.command,
                cwd=REPOSITORY,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """`kill -9` of the gateway alone: its executor has to notice by itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S_MAX)

    def stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S_MAX)

    def log(self) -> str:
        text = (self.folder / "server.log").read_text("utf-8", "replace")
        return text[-LOG_TAIL_CHARS:]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
