"""Whether this machine can run the kernels, and if not, what is missing; asked before Triton is
imported, so that a machine without it loses nothing by asking."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import torch

CAPABILITY_MIN = (8, 0)  # bfloat16 on tensor cores, asynchronous copies
COMPILERS = ("gcc", "clang", "cc")


def reason_absent() -> str | None:
    """Why `ops.make_backend` could not be used on `cuda`, in words for whoever runs the server."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device; expected an NVIDIA GPU with its driver and a CUDA build of torch"
    capability = torch.cuda.get_device_capability()
    if capability < CAPABILITY_MIN:
        wanted = ".".join(map(str, CAPABILITY_MIN))
        return f"the GPU has compute capability {capability[0]}.{capability[1]}; expected {wanted} or more"
    if find_spec("triton") is None:
        return "Triton is not installed; install the one that torch's CUDA build asks for"
    if not os.environ.get("CC") and not any(map(shutil.which, COMPILERS)):
        return (
            "there is no C compiler, with which Triton builds its launcher; install gcc, or set CC"
        )
    return None


def free_bytes() -> int:
    """Of the current device, for `memory.kv_blocks_that_fit`."""
    return int(torch.cuda.mem_get_info()[0])


def finish(device: torch.device) -> None:
    """Wait for whatever was started there."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
