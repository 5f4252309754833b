"""`lockgate doctor`: look at this machine and configuration, say what is wrong and the fix.

Only looks: creates nothing, opens no model, asks nobody but the development server, if one is known, and the Redis
of the configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import typer

from gateway import models_store
from gateway.cli.client import read_known
from gateway.cli.diagnosis import FileFacts, Finding, Machine, RedisFacts, Verdict, diagnose
from gateway.cli.options import VAR, Json, StateDir
from gateway.cli.serve import Config, require_free
from gateway.cli.show import Refusal, document, say
from gateway.settings import Mode, Settings, SettingsError, development, load, with_state_dir

NEEDED = (
    "starlette",
    "hypercorn",
    "h11",
    "jwt",
    "cryptography",
    "msgspec",
    "structlog",
    "sqlalchemy",
    "redis",
    "tokenizers",
    "gguf",
    "safetensors",
    "jinja2",
    "prometheus_client",
    "numpy",
)
STATE_FILES_MAX = 10_000
SECRETS = ("dev.json", "dev-issuer.pem")
_MARK = {Verdict.OK: "ok   ", Verdict.NOTE: "note ", Verdict.WRONG: "WRONG"}


def doctor(config: Config = None, state_dir: StateDir = VAR, as_json: Json = False) -> None:
    """Say what is wrong with this machine or configuration, and the fix. Exit code 1 if anything is."""
    faults: tuple[str, ...] = ()
    settings = development(state_dir)
    if config is not None:
        try:
            settings = load(config, os.environ, now_s=int(time.time()))
        except SettingsError as error:
            faults = tuple(map(str, error.faults))
        else:
            if state_dir != VAR:
                settings = with_state_dir(settings, state_dir, os.environ)
    findings = diagnose(examine(settings, faults))
    wrong = [item for item in findings if item.verdict is Verdict.WRONG]
    if as_json:
        document({"ok": not wrong, "findings": [dataclasses.asdict(item) for item in findings]})
    else:
        for item in findings:
            for line in lines(item):
                say(line)
        say(f"{len(wrong)} wrong." if wrong else "Nothing is wrong.")
    raise typer.Exit(1 if wrong else 0)


def lines(item: Finding) -> Iterator[str]:
    yield f"{_MARK[item.verdict]}  {item.what:<16} {item.found}"
    if item.fix:
        yield f"{'':23} → {item.fix}"


def examine(settings: Settings, config_faults: tuple[str, ...]) -> Machine:
    state = settings.state
    info = sys.version_info
    return Machine(
        python=(info.major, info.minor, info.micro),
        system=platform.system(),
        architecture=platform.machine(),
        torch=_version("torch"),
        packages_missing=tuple(name for name in NEEDED if importlib.util.find_spec(name) is None),
        cpu_flags=_cpu_flags(),
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        memory_available_bytes=_memory_bytes(),
        disk_free_bytes=_disk_bytes(state.dir),
        files_max=_files_max(),
        now_s=int(time.time()),
        newest_state_s=_newest_s(state.dir),
        state_dir=str(state.dir),
        state_dir_writable=os.access(_nearest(state.dir), os.W_OK | os.X_OK),
        secrets=tuple(map(_file, _secrets(settings))),
        ports={} if config_faults else _ports(settings),
        ports_ours=_ours(state.dir),
        model_fault=None if config_faults else _model_fault(settings),
        config_faults=config_faults,
        texts_without_room=_without_room(state.dir),
        redis=None if config_faults else redis_facts(settings),
    )


def redis_facts(settings: Settings) -> RedisFacts | None:
    """Asks it, for a second or two at the most."""
    url = settings.state.redis_url
    if not url:
        return None
    from tenants.tempo.look import look

    seen = asyncio.run(look(url.text))
    trouble = None if seen.trouble is None else seen.trouble.value
    return RedisFacts(str(url), trouble, seen.policy, seen.limited)


def _secrets(settings: Settings) -> tuple[Path, ...]:
    """Production makes no development issuer."""
    ours = SECRETS if settings.mode is Mode.DEVELOPMENT else ()
    return (settings.state.root_key_file, *(settings.state.dir / name for name in ours))


def _version(package: str) -> str | None:
    """Without importing it: torch takes seconds and is the executor's."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_flags() -> frozenset[str]:
    for line in _lines(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def _memory_bytes() -> int | None:
    """What is available, and no more than the container's limit leaves."""
    available = None
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    limit, used = (
        next(iter(_lines(Path("/sys/fs/cgroup") / name)), "").strip()
        for name in ("memory.max", "memory.current")
    )
    if limit.isdigit() and used.isdigit():
        left = max(0, int(limit) - int(used))
        return left if available is None else min(left, available)
    return available


def _lines(path: Path) -> Iterable[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()


def _nearest(path: Path) -> Path:
    """The folder itself or, before the first start, the one it will be made in."""
    here = path.absolute()
    return next(folder for folder in (here, *here.parents) if os.path.exists(folder))  # noqa: PTH110 — pathlib raises where one may not look


def _disk_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(_nearest(path)).free
    except OSError:
        return None


def _files_max() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _newest_s(folder: Path) -> int | None:
    newest: int | None = None
    try:
        for count, entry in enumerate(os.scandir(folder)):
            if count >= STATE_FILES_MAX:
                break
            changed_s = int(entry.stat(follow_symlinks=False).st_mtime)
            newest = changed_s if newest is None else max(newest, changed_s)
    except OSError:
        return newest
    return newest


def _file(path: Path) -> FileFacts:
    try:
        info = path.lstat()
    except OSError:
        return FileFacts(str(path), None)
    ours = info.st_uid in {0, os.geteuid()} and os.access(path, os.R_OK)
    return FileFacts(str(path), stat.S_IMODE(info.st_mode), ours)


def _ports(settings: Settings) -> dict[int, str | None]:
    wrong: dict[int, str | None] = {}
    for address in (settings.listen.public, settings.listen.admin):
        try:
            require_free(address, "--port")
            wrong[address.port] = None
        except Refusal as refusal:
            wrong[address.port] = refusal.message
    return wrong


def _ours(state_dir: Path) -> frozenset[int]:
    """The ports of the development server that `dev.json` names, if it answers."""
    with contextlib.suppress(Refusal, httpx2.HTTPError, httpx2.InvalidURL, ValueError):
        known = read_known(state_dir, "nothing")
        answer = httpx2.get(f"{known.base_url}/health", timeout=2.0, trust_env=False)
        if answer.is_success:
            ports = (urlsplit(url).port for url in (known.base_url, known.admin_url))
            return frozenset(port for port in ports if port is not None)
    return frozenset()


def _without_room(state_dir: Path) -> int | None:
    """By the metrics of the development server, if it answers."""
    with contextlib.suppress(Refusal, httpx2.HTTPError, httpx2.InvalidURL, ValueError):
        known = read_known(state_dir, "nothing")
        answer = httpx2.get(
            f"{known.admin_url}/metrics",
            headers={"authorization": f"Bearer {known.tokens.get('operator', '')}"},
            timeout=2.0,
            trust_env=False,
        )
        if answer.is_success:
            return without_room(answer.text)
    return None


def without_room(metrics: str) -> int:
    """Of an exposition."""
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in metrics.splitlines()
        if line.startswith("lockgate_registered_texts{") and 'state="no_room"' in line
    )


def _model_fault(settings: Settings) -> str | None:
    for model in settings.models:
        try:
            models_store.find(model.path, settings.models_dir)
        except models_store.ModelMissing as missing:
            return str(missing)
        except OSError as error:
            return f"{error.filename or model.path} cannot be looked at: {error.strerror}"
    return None
