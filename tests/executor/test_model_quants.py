"""Every type of weights that a GGUF file may have, against blocks taken apart here by ggml's layout,
one weight at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from executor.model.errors import ModelError
from executor.model.gguf_file import READABLE, open_gguf

Kind = gguf.GGMLQuantizationType


def half(data: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", data, at)[0])


def q8_0(data: bytes) -> list[float]:
    return [half(data, 0) * struct.unpack_from("<b", data, 2 + at)[0] for at in range(32)]


def q4(data: bytes, floats: int) -> list[float]:
    scale = half(data, 0)
    least = half(data, 2) if floats == 2 else -8 * scale
    nibbles = [byte & 15 for byte in data[2 * floats :]] + [
        byte >> 4 for byte in data[2 * floats :]
    ]
    return [scale * nibble + least for nibble in nibbles]


def packed_scale(packed: bytes, at: int) -> tuple[int, int]:
    """The `at`th of eight scales and minima of six bits each, in twelve bytes."""
    if at < 4:
        return packed[at] & 63, packed[at + 4] & 63
    low, high = packed[at + 4] & 15, packed[at + 4] >> 4
    return low | packed[at - 4] >> 6 << 4, high | packed[at] >> 6 << 4


def k45(data: bytes, high: int) -> list[float]:
    """Q4_K (`high` 0) and Q5_K (32 bytes of fifth bits)."""
    scale, least, packed = half(data, 0), half(data, 2), data[4:16]
    fifth, low = data[16 : 16 + high], data[16 + high :]
    found = []
    for at in range(256):
        group, within = divmod(at, 32)
        byte = low[group // 2 * 32 + within]
        value = byte >> 4 if group % 2 else byte & 15
        if high and fifth[within] >> group & 1:
            value += 16
        by, minus = packed_scale(packed, group)
        found.append(scale * by * value - least * minus)
    return found


def q6_k(data: bytes) -> list[float]:
    low, high, scales, scale = data[:128], data[128:192], data[192:208], half(data, 208)
    found = []
    for at in range(256):
        part, within = divmod(at, 128)
        quarter, column = divmod(within, 32)
        byte = low[part * 64 + quarter % 2 * 32 + column]
        value = byte >> 4 if quarter > 1 else byte & 15
        value |= (high[part * 32 + column] >> 2 * quarter & 3) << 4
        by = struct.unpack_from("<b", scales, part * 8 + quarter * 2 + column // 16)[0]
        found.append(scale * by * (value - 32))
    return found


def bf16(data: bytes) -> list[float]:
    return [float(struct.unpack("<f", b"\0\0" + data)[0])]


LAYOUTS: dict[Kind, Callable[[bytes], list[float]]] = {
    Kind.F32: lambda data: [float(struct.unpack("<f", data)[0])],
    Kind.F16: lambda data: [half(data, 0)],
    Kind.BF16: bf16,
    Kind.Q8_0: q8_0,
    Kind.Q4_0: lambda data: q4(data, 1),
    Kind.Q4_1: lambda data: q4(data, 2),
    Kind.Q4_K: lambda data: k45(data, 0),
    Kind.Q5_K: lambda data: k45(data, 32),
    Kind.Q6_K: q6_k,
}
FLOATS_AT = {Kind.Q8_0: 1, Kind.Q4_0: 1, Kind.Q4_1: 2, Kind.Q4_K: 2, Kind.Q5_K: 2}


def random_blocks(
    kind: Kind, rows: int, columns: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Any bytes are a block; only its float16 must be numbers."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(int(kind))
    data = random.integers(0, 256, (rows, columns // elements, size), np.uint8)
    halves = random.normal(size=(rows, columns // elements, 2)).astype("<f2").view(np.uint8)
    if kind in FLOATS_AT:
        data[..., : 2 * FLOATS_AT[kind]] = halves[..., : 2 * FLOATS_AT[kind]]
    elif kind is Kind.Q6_K:
        data[..., 208:] = halves[..., :2]
    elif kind in {Kind.F32, Kind.BF16}:
        data[..., -1] = 63  # an exponent of ordinary size
    else:
        data[..., -1] = 60
    return data.reshape(rows, -1)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_type_is_read_as_its_layout_says(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.model.gguf_file.CHUNK_ELEMENTS", 1024)  # more than one chunk
    rows, columns = 7, 512
    stored = random_blocks(kind, rows, columns)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = open_gguf(tmp_path / "m.gguf").array("w")
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = stored.tobytes()
    expected = [w for at in range(0, len(data), size) for w in LAYOUTS[kind](data[at : at + size])]
    assert found.shape == (rows, columns)
    assert np.allclose(found.ravel(), expected, rtol=1e-5, atol=1e-6)
    assert kind in READABLE


def test_a_type_that_is_no_weight_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", np.ones((2, 32), np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="of type I32"):
        open_gguf(tmp_path / "m.gguf").array("w")
