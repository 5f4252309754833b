"""What makes a machine fit to serve: pure findings over facts that `doctor` gathered.

Each finding says what was found and, where something is wrong, the fix.  Reads no file, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

PYTHON_MIN, PYTHON_TESTED_MAX = (3, 11), (3, 13)
TORCH_MIN, TORCH_BELOW = (2, 11), (2, 14)
MEMORY_MIN_BYTES = 1536 << 20
DISK_MIN_BYTES = 1 << 30
FILES_MIN = 1024
RELEASED_S = 1_795_900_000  # 2026-11-28: a clock before it is wrong
AHEAD_S_MAX = 120


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"  # works, and one may want to know
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    verdict: Verdict
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """`mode` None: absent.  `ours`: this account or root has it, and this account can read it."""

    path: str
    mode: int | None
    ours: bool = True


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """`url` without its password.  None: it did not say."""

    url: str
    trouble: str | None
    policy: str | None = None
    limited: bool | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """None: could not be told here."""

    python: tuple[int, int, int]
    system: str
    architecture: str
    torch: str | None
    packages_missing: tuple[str, ...]
    cpu_flags: frozenset[str]
    cores: int
    memory_available_bytes: int | None
    disk_free_bytes: int | None
    files_max: int | None
    now_s: int
    newest_state_s: int | None
    state_dir: str
    state_dir_writable: bool
    secrets: tuple[FileFacts, ...]
    ports: Mapping[int, str | None]
    """Port to what is wrong with it, None where it can be listened on."""
    ports_ours: frozenset[int]
    """Those that a running server of this state directory holds."""
    model_fault: str | None
    config_faults: tuple[str, ...]
    texts_without_room: int | None = None
    """Registered texts that the running server cannot keep ready."""
    redis: RedisFacts | None = None
    """None: the configuration names none."""


def diagnose(machine: Machine) -> tuple[Finding, ...]:
    return tuple(_all(machine))


def _all(machine: Machine) -> Iterator[Finding]:
    yield python(machine.python)
    yield platform(machine.system, machine.architecture)
    yield torch(machine.torch)
    yield packages(machine.packages_missing)
    yield cpu(machine.architecture, machine.cpu_flags, machine.cores)
    yield _at_least("memory", machine.memory_available_bytes, MEMORY_MIN_BYTES, _MEMORY_FIX)
    yield _at_least("disk", machine.disk_free_bytes, DISK_MIN_BYTES, _DISK_FIX)
    yield files(machine.files_max)
    yield clock(machine.now_s, machine.newest_state_s)
    yield state_dir(machine.state_dir, writable=machine.state_dir_writable)
    for item in machine.secrets:
        yield secret(item)
    for port, wrong in sorted(machine.ports.items()):
        yield _port(port, wrong, ours=port in machine.ports_ours)
    yield _model(machine.model_fault)
    if machine.texts_without_room:
        yield Finding(
            "registered texts",
            Verdict.NOTE,
            f"{machine.texts_without_room:,} have no room in their tenant's part and are not kept ready",
            "Raise kv_memory or plans.*.cache.quota, or delete texts; the log names each (registered.no_room).",
        )
    if machine.redis is not None:
        yield redis(machine.redis)
    for fault in machine.config_faults:
        yield Finding(
            "configuration", Verdict.WRONG, fault, "Correct it; 'lockgate check' lists all."
        )


_MEMORY_FIX = "Stop other programs, or choose a smaller model or kv_memory."
_DISK_FIX = "Free some space, or put the state elsewhere with --state-dir."


def python(version: tuple[int, int, int]) -> Finding:
    shown = ".".join(map(str, version))
    if version[:2] < PYTHON_MIN:
        return Finding("Python", Verdict.WRONG, shown, "Use Python 3.11 or newer.")
    if version[:2] > PYTHON_TESTED_MAX:
        return Finding("Python", Verdict.NOTE, f"{shown}, newer than what is tested (3.11 to 3.13)")
    return Finding("Python", Verdict.OK, shown)


def platform(system: str, architecture: str) -> Finding:
    shown = f"{system} {architecture}"
    if (system, architecture) == ("Linux", "x86_64"):
        return Finding("platform", Verdict.OK, shown)
    if system in {"Linux", "Darwin"}:
        return Finding("platform", Verdict.NOTE, f"{shown}: serves on the CPU, less tested")
    return Finding("platform", Verdict.WRONG, shown, "Use Linux, macOS, or Linux inside WSL.")


def torch(version: str | None) -> Finding:
    fix = "Run 'python3 deploy/dev.py serve' again, or pip install 'torch>=2.11,<2.14'."
    if version is None:
        return Finding("torch", Verdict.WRONG, "not installed", fix)
    head = version.split("+", maxsplit=1)[0].split(".")
    numbers = tuple(int(part) if part.isdigit() else 0 for part in head[:2])
    if not TORCH_MIN <= numbers < TORCH_BELOW:
        return Finding("torch", Verdict.WRONG, f"{version}, expected 2.11 to 2.13", fix)
    return Finding("torch", Verdict.OK, version)


def packages(missing: tuple[str, ...]) -> Finding:
    if missing:
        return Finding(
            "packages",
            Verdict.WRONG,
            f"missing: {', '.join(missing)}",
            "Run 'python3 deploy/dev.py serve', which installs what the lock names.",
        )
    return Finding("packages", Verdict.OK, "all there")


def cpu(architecture: str, flags: frozenset[str], cores: int) -> Finding:
    wide = [
        name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd") if name in flags
    ]
    shown = f"{cores} cores" + (f", {' '.join(wide)}" if wide else "")
    if architecture == "x86_64" and flags and "avx2" not in flags:
        return Finding(
            "CPU",
            Verdict.NOTE,
            f"{shown}, no AVX2",
            "It works, slowly; a newer CPU is much faster.",
        )
    return Finding("CPU", Verdict.OK, shown)


def files(limit: int | None) -> Finding:
    if limit is None:
        return Finding("open files", Verdict.NOTE, "cannot be told here")
    if limit < FILES_MIN:
        return Finding(
            "open files",
            Verdict.WRONG,
            f"{limit:,} allowed, expected {FILES_MIN:,}",
            f"Run 'ulimit -n {FILES_MIN}' first, or raise LimitNOFILE.",
        )
    return Finding("open files", Verdict.OK, f"{limit:,} allowed")


def clock(now_s: int, newest_state_s: int | None) -> Finding:
    """A clock that is behind what was already written would put windows and tokens wrong."""
    if now_s < RELEASED_S:
        return Finding(
            "clock", Verdict.WRONG, "before this release was made", "Set the clock (NTP)."
        )
    if newest_state_s is not None and newest_state_s > now_s + AHEAD_S_MAX:
        return Finding(
            "clock",
            Verdict.WRONG,
            f"{newest_state_s - now_s:,} s behind the newest file of the state directory",
            "Set the clock (NTP) before serving.",
        )
    return Finding("clock", Verdict.OK, "plausible")


def state_dir(path: str, *, writable: bool) -> Finding:
    if writable:
        return Finding("state directory", Verdict.OK, path)
    return Finding(
        "state directory",
        Verdict.WRONG,
        f"{path} cannot be written",
        "Give it to this account, or choose another with --state-dir.",
    )


def secret(item: FileFacts) -> Finding:
    name = item.path.rpartition("/")[2]
    if item.mode is None:
        return Finding(name, Verdict.OK, "made at first start")
    if not item.ours:
        fix = f"Give it to the serving account: chown … {item.path}"
        return Finding(name, Verdict.WRONG, "belongs to another account", fix)
    if item.mode & 0o077:
        return Finding(
            name,
            Verdict.WRONG,
            f"open to others (mode {item.mode:04o}, expected 0600)",
            f"chmod 600 {item.path}; if anybody else could have read it, replace it.",
        )
    return Finding(name, Verdict.OK, f"mode {item.mode:04o}")


def _port(port: int, wrong: str | None, *, ours: bool) -> Finding:
    name = f"port {port}"
    if ours:
        return Finding(name, Verdict.OK, "held by the running server")
    if wrong is not None:
        return Finding(
            name,
            Verdict.WRONG,
            wrong,
            "Leave it if this configuration's own server holds it. Else stop what does, or choose another.",
        )
    return Finding(name, Verdict.OK, "free")


def _model(fault: str | None) -> Finding:
    if fault is not None:
        return Finding("model", Verdict.WRONG, fault, "See 'path' of [[models]], or --model.")
    return Finding("model", Verdict.OK, "its files are there")


REDIS_FIXES: Mapping[str, str] = MappingProxyType(
    {
        "unreachable": "Start it, or correct redis_url; the server starts without it, with a part of each limit.",
        "slow": "It took more than a second; look at its load and at the network.",
        "read_only": "It is a replica: name the primary in redis_url.",
        "loading": "It reads its data; wait until it has.",
        "refused": "Correct the user and password in redis_url, or its rights (deploy/README.md lists them).",
    }
)


def redis(facts: RedisFacts) -> Finding:
    """Whether it can be asked, and whether it throws keys away by itself."""
    if facts.trouble is not None:
        fix = REDIS_FIXES.get(facts.trouble, "Look into its log.")
        return Finding("Redis", Verdict.WRONG, f"{facts.url} is {facts.trouble}", fix)
    if facts.policy is None:
        return Finding(
            "Redis", Verdict.NOTE, f"{facts.url} answers, and hides its maxmemory-policy"
        )
    shown = f"{facts.url} answers, maxmemory-policy {facts.policy}"
    if facts.policy == "noeviction":
        return Finding("Redis", Verdict.OK, shown)
    return Finding(
        "Redis",
        Verdict.WRONG if facts.limited else Verdict.NOTE,
        shown,
        "Set maxmemory-policy noeviction: what it evicts are limits that start anew.",
    )


def _at_least(what: str, got: int | None, least: int, fix: str) -> Finding:
    if got is None:
        return Finding(what, Verdict.NOTE, "cannot be told here")
    shown = f"{got / (1 << 30):.1f} GiB free"
    if got < least:
        return Finding(what, Verdict.WRONG, f"{shown}, expected {least / (1 << 30):.1f}", fix)
    return Finding(what, Verdict.OK, shown)
