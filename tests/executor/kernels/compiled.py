"""Compile what the kernels' own wrappers would launch, for sm_90, on a machine without a GPU.

`python -m tests.executor.kernels.compiled` prints one JSON object: kernel → what ptxas made of its
variants.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from executor.kernels import attention, gate, merge, norm, rotary, sampling, zero
from executor.kernels.places import Places, Tiles
from executor.model.config import Activation

TARGET = GPUTarget("cuda", 90, 32)
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True)
class Built:
    kernel: str
    variant: str
    cubin_bytes: int
    shared_bytes: int
    registers: int
    local_bytes: int  # spilled registers, and what a slow path of a library keeps
    threads: int
    tensor_core: bool
    copies_ahead: bool


def build(kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Built:
    """As a launch with these would be specialised: aligned pointers, constants by value."""
    options = {name: named.pop(name) for name in OPTIONS if name in named}
    names = [parameter.name for parameter in kernel.params]
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    for at, name in enumerate(names):
        value = named[name] if name in named else arguments[at]
        if kernel.params[at].is_constexpr:
            signature[name] = "constexpr"
            constants[(at,)] = value
        elif isinstance(value, Tensor):
            signature[name] = "*" + TYPES[value.dtype]
            attributes[(at,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=TARGET, options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = subprocess.run(
            [str(CUOBJDUMP), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    used = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    ptx = made.asm["ptx"]
    return Built(
        kernel=kernel.__name__.removeprefix("_"),
        variant="",
        cubin_bytes=len(made.asm["cubin"]),
        shared_bytes=made.metadata.shared,
        registers=used["REG"],
        local_bytes=used["STACK"] + used["LOCAL"],
        threads=32 * options["num_warps"],
        tensor_core=any(name in ptx for name in ("wgmma", "mma.sync")),
        copies_ahead="cp.async" in ptx,
    )


def launches(call: Callable[[], object], *modules: Any) -> list[Built]:
    """What `call` would launch."""
    found: list[Built] = []

    def instead(kernel: Any, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        found.append(build(kernel, arguments, named | {"enable_fp_fusion": True}))

    kept = [module.launch for module in modules]
    for module in modules:
        module.launch = instead
    try:
        call()
    finally:
        for module, launch in zip(modules, kept, strict=True):
            module.launch = launch
    return found


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def one_row(size: int, splits: int) -> tuple[Places, Tiles]:
    places = Places(ints(0), ints(0), ints(0, 1), ints(1), ints(0), ints(0))
    return places, Tiles(ints(0), ints(0), size, 1, splits, 64)


def attend(
    heads: int,
    kv_heads: int,
    head_dim: int,
    size: int,
    splits: int,
    window: int | None,
    dtype: torch.dtype = torch.bfloat16,
) -> list[Built]:
    places, tiles = one_row(size, splits)
    kv = torch.zeros(1, 2 * kv_heads, 32, head_dim, dtype=dtype)
    queries = torch.zeros(1, heads * head_dim, dtype=dtype)
    return launches(
        lambda: attention.attend(queries, kv, places, (tiles,), scale=0.1, window=window),
        attention,
        merge,
    )


def rotate(heads: int, kv_heads: int, head_dim: int, *, normed: bool) -> list[Built]:
    places, _ = one_row(16, 1)
    kv = torch.zeros(1, 2 * kv_heads, 32, head_dim, dtype=torch.bfloat16)
    qkv = torch.zeros(1, (heads + 2 * kv_heads) * head_dim, dtype=torch.bfloat16)
    turned = torch.zeros(1, head_dim)
    weight = torch.ones(head_dim) if normed else None
    return launches(
        lambda: rotary.rotate_store(qkv, turned, weight, weight, kv, places, heads, 1e-5), rotary
    )


def row(columns: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(1, columns, dtype=dtype)


def add_norm(columns: int, *, after: bool) -> list[Built]:
    weight = torch.ones(columns)
    x = row(columns, torch.float32)
    return launches(
        lambda: norm.add_norm(
            x, row(columns), weight if after else None, weight, 1e-5, torch.bfloat16
        ),
        norm,
    )


VARIANTS: dict[str, Callable[[], list[Built]]] = {
    "add_norm, 8B": lambda: add_norm(4096, after=False),
    "add_norm after a norm, Gemma 3 27B": lambda: add_norm(5376, after=True),
    "gate silu, 8B": lambda: launches(lambda: gate.gated(row(28672), Activation.SILU), gate),
    "gate gelu": lambda: launches(lambda: gate.gated(row(20480), Activation.GELU_TANH), gate),
    "zero": lambda: launches(
        lambda: zero.zero_blocks(torch.zeros(2, 2, 2, 32, 64, dtype=torch.bfloat16), ints(1)), zero
    ),
    "turns": lambda: launches(
        lambda: rotary.turns(ints(0), torch.ones(64), torch.empty(1, 128)), rotary
    ),
    "rotate, 8B": lambda: rotate(32, 8, 128, normed=False),
    "rotate normed, head 256": lambda: rotate(8, 4, 256, normed=True),
    "rotate, default model": lambda: rotate(9, 3, 64, normed=False),
    "sample": lambda: launches(
        lambda: sampling.draw(
            row(128256, torch.float32),
            sampling.Rules(torch.ones(1), ints(5), torch.ones(1), torch.ones(1), ints(1, 2)),
        ),
        sampling,
    ),
    "decode, 8B, split": lambda: attend(32, 8, 128, 16, 32, None),
    "decode, default model": lambda: attend(9, 3, 64, 16, 1, None),
    "decode, head 256, window": lambda: attend(8, 4, 256, 16, 4, 1024),
    "decode, head 80": lambda: attend(32, 32, 80, 16, 1, None),
    "prefill, 8B": lambda: attend(32, 8, 128, 128, 1, None),
    "prefill, head 256, window": lambda: attend(8, 4, 256, 64, 1, 1024),
    "prefill, head 128, float32": lambda: attend(32, 8, 128, 64, 1, None, torch.float32),
    "prefill, default model": lambda: attend(9, 3, 64, 128, 1, None),
}


def main() -> None:
    built: dict[str, list[dict[str, Any]]] = {}
    for variant, make in VARIANTS.items():
        for each in make():
            built.setdefault(each.kernel, []).append(asdict(each) | {"variant": variant})
    json.dump(built, sys.stdout)


if __name__ == "__main__":
    main()
