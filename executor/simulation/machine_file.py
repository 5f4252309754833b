"""A machine in a file: what `python -m tests.bench validate --out FILE` measured, for `--machine FILE`.

One JSON object, `Machine`'s fields and nothing else.  What is missing, unknown or out of bounds is
refused with the field and what was expected; a refusal repeats nothing of what stood there.

Refuses to know: how it was measured.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import msgspec

from executor.simulation.machine import Machine

FILE_BYTES_MAX: Final = 1 << 16
_Ns = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 26)]


class _Shape(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[\w .,:+()/-]+\Z")]
    fixed_ns: _Ns
    sequence_ns: _Ns
    kv_token_ns: _Ns
    token_ns: _Ns
    pair_ns: _Ns
    seqs: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    kv_blocks: _Count


class MachineError(ValueError):
    """A file that holds no machine: what was wrong, what was expected."""


def write(machine: Machine, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(asdict(machine)), indent=1) + b"\n")


def read(path: Path) -> Machine:
    """MachineError; OSError if it cannot be opened."""
    with path.open("rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise MachineError(f"{path.name} is larger than {FILE_BYTES_MAX:,} bytes; {_EXPECTED}")
    try:
        shape = msgspec.json.decode(text, type=_Shape)
    except (msgspec.DecodeError, RecursionError) as broken:
        # Its messages name fields and bounds, never values.
        why = str(broken) if isinstance(broken, msgspec.ValidationError) else "it is no JSON object"
        raise MachineError(f"{path.name} describes no machine: {why}; {_EXPECTED}") from None
    if shape.fixed_ns + shape.sequence_ns <= 0:
        raise MachineError(
            f"{path.name} describes no machine: a step takes no time (`fixed_ns`, `sequence_ns`); {_EXPECTED}"
        )
    return Machine(**{name: getattr(shape, name) for name in shape.__struct_fields__})


_EXPECTED: Final = "expected what `python -m tests.bench validate --out FILE` writes"
