"""What a figure was measured on: without this line beside it, a figure says nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.bench.processes import memory_gib

FLAGS_THAT_MATTER = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int
    memory_gib: float
    flags: tuple[str, ...]
    python: str
    torch: str | None
    commit: str
    load_1m: float  # of everything else on the machine, before the run

    def sentence(self) -> str:
        flags = " ".join(self.flags) or "no vector flags of note"
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib:.0f} GiB, {flags}; "
            f"Python {self.python}, torch {self.torch}; commit {self.commit}; "
            f"load before the run {self.load_1m:.2f}"
        )


def this_machine(repository: Path) -> Machine:
    cpu, flags = _cpuinfo(Path("/proc/cpuinfo"))
    return Machine(
        cpu=cpu or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=memory_gib(),
        flags=tuple(flag for flag in FLAGS_THAT_MATTER if flag in flags),
        python=platform.python_version(),
        torch=_version("torch"),
        commit=_commit(repository),
        load_1m=os.getloadavg()[0],
    )


def _cpuinfo(path: Path) -> tuple[str | None, frozenset[str]]:
    if not path.exists():
        return None, frozenset()
    values: dict[str, str] = {}
    for line in path.read_text("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())
    return values.get("model name"), frozenset(values.get("flags", "").split())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit(repository: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.stdout.strip() or "unknown"
