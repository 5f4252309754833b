"""A machine in a file: what `python -m tests.bench validate --out FILE` measured, for `--machine FILE`.

One JSON object, `Machine`'s fields and nothing else.  What is missing, unknown or out of bounds is
refused with the field and what was expected; a refusal repeats nothing of what stood there.

Refuses to know: how it was measured.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import msgspec

from executor.simulation.machine import TERM_NS_MAX, Machine
from executor.simulation.quoting import misfit

FILE_BYTES_MAX: Final = 1 << 16
NAME_CHARS_MAX: Final = 128
_NAME: Final = r"[\w .,:+()/-]"
_Ns = Annotated[float, msgspec.Meta(ge=0, le=TERM_NS_MAX)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 26)]


class _Shape(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX, pattern=rf"^{_NAME}+\Z")]
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


def named(text: str) -> str:
    """`text` as the name of a machine may be."""
    return "".join(c if re.match(_NAME, c) else "-" for c in text[:NAME_CHARS_MAX]) or "unnamed"


def write(machine: Machine, path: Path) -> None:
    """MachineError, and no file, if `read` would refuse it."""
    text = msgspec.json.format(msgspec.json.encode(asdict(machine)), indent=1) + b"\n"
    _machine(text, "what was to be written")
    path.write_bytes(text)


def read(path: Path) -> Machine:
    """MachineError; OSError if it cannot be opened."""
    with path.open("rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise MachineError(f"{path.name} is larger than {FILE_BYTES_MAX:,} bytes; {_EXPECTED}")
    return _machine(text, path.name)


def _machine(text: bytes, whence: str) -> Machine:
    try:
        shape = msgspec.json.decode(text, type=_Shape)
    except (msgspec.DecodeError, RecursionError) as broken:
        why = misfit(broken, "JSON object")
        raise MachineError(f"{whence} describes no machine: {why}; {_EXPECTED}") from None
    if shape.fixed_ns + shape.sequence_ns <= 0:
        raise MachineError(
            f"{whence} describes no machine: a step takes no time (`fixed_ns`, `sequence_ns`); {_EXPECTED}"
        )
    return Machine(**{name: getattr(shape, name) for name in shape.__struct_fields__})


_EXPECTED: Final = (
    "expected what `python -m tests.bench validate --out FILE` writes, an object of "
    + ", ".join(_Shape.__struct_fields__)
)
