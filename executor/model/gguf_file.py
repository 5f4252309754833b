"""Read a GGUF file without believing it: header, metadata, tensor table, one tensor at a time.

The header is walked here rather than with `gguf.GGUFReader`: that one follows any length the file
claims (an array of 2**60 empty strings never ends) and takes seconds over a vocabulary.  Types, block
sizes and dequantisation are the library's.
Refuses to know: architectures, tokenizers.  Source: ggml's docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize

from .errors import ModelError

KEYS_MAX = 4096
TENSORS_MAX = 1 << 16
ELEMENTS_MAX = 1 << 22  # of all metadata arrays together
DIMENSIONS_MAX = 4
ALIGNMENT_MAX = 1 << 20
CHUNK_ELEMENTS = 1 << 22
_F = GGMLQuantizationType
READABLE = frozenset(
    {_F.F32, _F.F16, _F.BF16, _F.Q8_0, _F.Q4_0, _F.Q4_1, _F.Q5_0, _F.Q5_1}
    | {_F.Q2_K, _F.Q3_K, _F.Q4_K, _F.Q5_K, _F.Q6_K}
)

_SCALARS: Mapping[int, struct.Struct] = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` as numpy has it (rows first); `at` and `size` in bytes of the file."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    at: int
    size: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    def array(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Tensor `name` in float32.  ModelError for a type that is not in READABLE."""
        info = self.tensors[name]
        self.check_type(name)
        raw = np.asarray(np.memmap(self.path, np.uint8, "r", info.at, (info.size,)))
        rows = raw.reshape(math.prod(info.shape[:-1]), -1)
        found = np.empty((len(rows), info.shape[-1]), np.float32)
        step = max(1, CHUNK_ELEMENTS // info.shape[-1])
        for at in range(0, len(rows), step):  # dequantising takes several times what it gives
            part = rows[at : at + step]
            if info.kind is GGMLQuantizationType.F32:
                found[at : at + step] = part.view("<f4")
            elif info.kind is GGMLQuantizationType.F16:
                found[at : at + step] = part.view("<f2")
            else:
                found[at : at + step] = dequantize(part, info.kind)
        return found.reshape(info.shape)

    def check_type(self, name: str) -> None:
        kind = self.tensors[name].kind
        if kind not in READABLE:
            raise ModelError(
                f"tensor {name!r:.80} is of type {kind.name}, which cannot be read;"
                " use Q4_1, Q8_0, F16 or another common type"
            )

    def raw(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A copy of tensor `name` as stored: its shape, the last dimension in bytes."""
        info = self.tensors[name]
        stored = np.memmap(self.path, np.uint8, "r", info.at, (info.size,))
        return np.array(stored).reshape(*info.shape[:-1], -1)

    def digest(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def open_gguf(path: Path) -> GgufFile:
    """ModelError if any length, offset or type in the header cannot be true of this file."""
    with path.open("rb") as file:
        if not file.read(4).startswith(b"GGUF"):
            raise ModelError(
                f"{path.name} is not a GGUF file; expected one that begins with 'GGUF'"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(path, data)
            except UnicodeDecodeError as why:
                raise ModelError(f"{path.name} is damaged: a name is not UTF-8") from why


class _Cursor:
    """A position in the mapped file; every step is checked against its end."""

    __slots__ = ("at", "data", "elements_left", "size")

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.size = data, 4, len(data)
        self.elements_left = ELEMENTS_MAX

    def need(self, count: int) -> int:
        start = self.at
        if count > self.size - start:
            raise ModelError(
                "the GGUF file ends within its header: truncated or damaged; fetch it anew"
            )
        self.at = start + count
        return start

    def unpack(self, form: struct.Struct) -> Any:
        return form.unpack_from(self.data, self.need(form.size))[0]

    def text(self) -> str:
        length = self.unpack(_U64)
        start = self.need(length)
        return self.data[start : start + length].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind == GGUFValueType.ARRAY:
            return self.array()
        form = _SCALARS.get(kind)
        if form is None:
            raise ModelError(f"the GGUF file is damaged: metadata of unknown type {kind}")
        return self.unpack(form)

    def array(self) -> list[Any]:
        kind, count = self.unpack(_U32), self.unpack(_U64)
        if count > self.elements_left:
            raise ModelError(f"the GGUF metadata holds more than {ELEMENTS_MAX} array elements")
        self.elements_left -= count
        if kind == GGUFValueType.STRING:
            return [self.text() for _ in range(count)]
        form = _SCALARS.get(kind)
        if form is None:
            raise ModelError(f"GGUF arrays of type {kind} are not supported")
        start = self.need(form.size * count)
        return [item for (item,) in form.iter_unpack(self.data[start : start + form.size * count])]


def _unique(cursor: _Cursor, count: int, each: Callable[[], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(count):
        name = cursor.text()
        if name in found:
            raise ModelError(f"the GGUF file is damaged: {name!r:.80} appears twice")
        found[name] = each()
    return found


def _parse(path: Path, data: mmap.mmap) -> GgufFile:
    cursor = _Cursor(data)
    version = cursor.unpack(_U32)
    if version not in {2, 3}:
        raise ModelError(f"GGUF version {version} is not supported; expected 2 or 3, little-endian")
    tensor_count, key_count = cursor.unpack(_U64), cursor.unpack(_U64)
    if tensor_count > TENSORS_MAX or key_count > KEYS_MAX:
        raise ModelError(
            f"the GGUF file claims {tensor_count} tensors and {key_count} keys;"
            f" expected at most {TENSORS_MAX} and {KEYS_MAX}"
        )
    metadata = _unique(cursor, key_count, lambda: cursor.value(cursor.unpack(_U32)))
    raw = _unique(cursor, tensor_count, lambda: _tensor_entry(cursor))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= ALIGNMENT_MAX:
        raise ModelError("the GGUF file is damaged: general.alignment is out of range")
    start = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, (shape, kind, offset) in raw.items():
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block_elements:
            raise ModelError(f"tensor {name!r:.80}: rows of {shape[-1]} do not divide into blocks")
        size = math.prod(shape) // block_elements * block_bytes
        if offset % alignment or start + offset + size > cursor.size:
            raise ModelError(
                f"tensor {name!r:.80} lies beyond the end of {path.name}: truncated; fetch it anew"
            )
        tensors[name] = TensorInfo(shape, kind, start + offset, size)
    end = start
    for name, info in sorted(tensors.items(), key=lambda pair: pair[1].at):
        if info.at < end:
            raise ModelError(f"the GGUF file is damaged: tensor {name!r:.80} overlaps another")
        end = info.at + info.size
    return GgufFile(path, metadata, tensors)


def _tensor_entry(cursor: _Cursor) -> tuple[tuple[int, ...], GGMLQuantizationType, int]:
    dimensions = cursor.unpack(_U32)
    if not 1 <= dimensions <= DIMENSIONS_MAX:
        raise ModelError(f"the GGUF file is damaged: a tensor of {dimensions} dimensions")
    shape = tuple(cursor.unpack(_U64) for _ in range(dimensions))[::-1]
    number, offset = cursor.unpack(_U32), cursor.unpack(_U64)
    if 0 in shape:
        raise ModelError("the GGUF file is damaged: a tensor with an empty dimension")
    try:
        return shape, GGMLQuantizationType(number), offset
    except ValueError as why:
        raise ModelError(f"GGUF tensor type {number} is not known; use a common type") from why
