"""The one place where Triton is imported, so that its lack of types and of a GPU is dealt with once.

`jit` fixes what a kernel may be specialised on: nothing that changes from step to step, so that
nothing is compiled while serving.  Refuses to know: any kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

__all__ = ["Kernel", "cdiv", "jit", "launch", "next_power_of_2", "tl"]

Kernel = Any
"""A compiled or interpreted function of a grid."""


def jit(*, varying: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Kernel]:
    """`varying`: whole-number arguments that differ from step to step."""
    return lambda function: triton.jit(
        function, do_not_specialize=varying, do_not_specialize_on_alignment=varying
    )


def launch(kernel: Kernel, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Start it unless there is nothing to do.  Fused multiply-add is on by name: Triton's own default
    is about to change."""
    if 0 not in grid:
        kernel[grid](*arguments, enable_fp_fusion=True, **options)


def next_power_of_2(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def cdiv(value: int, by: int) -> int:
    return -(-value // by)
