"""What this machine offers to the CPU backend: cores, memory, bf16 arithmetic.  Linux first; elsewhere
the answers are cautious, never wrong by much."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def physical_cores() -> int:
    """Cores this process may use, hyper-threads counted once: two threads on one core share its
    vector units, and a matrix product gains nothing from the second."""
    usable = (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else set(range(os.cpu_count() or 1))
    )
    cores = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            package = (topology / "physical_package_id").read_text()
            core = (topology / "core_id").read_text()
        except OSError:
            return max(1, len(usable))
        cores.add((package, core))
    return max(1, min(len(cores), _quota_cores() or len(cores)))


def _quota_cores() -> int | None:
    """The container's CPU quota, rounded up; a team larger than it is throttled at every barrier."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        return None


def available_bytes() -> int | None:
    """Memory that can be had without swapping, within the container's limit; None if unknown."""
    found: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.extend(
            int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")
        )
    except (OSError, ValueError, IndexError):
        pass
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            found.append(max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def has_bf16() -> bool:
    """Whether bf16 products run in hardware; emulated, they lose to float32."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16") or able.get("arm_bf16"))


def has_amx() -> bool:
    able = torch.cpu.get_capabilities()
    return bool(able.get("amx_tile") and able.get("amx_bf16"))


def has_vnni() -> bool:
    """Whether bytes are multiplied 64 at a time, as the 8-bit kernels do."""
    return bool(torch.cpu.get_capabilities().get("avx512_vnni"))


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "CPU"
