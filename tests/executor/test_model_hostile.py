"""Files made to harm: whatever is in them, they are opened or refused with a sentence, within a bound of
memory, and nothing outside a model's directory is read."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executor.model.errors import ModelError
from executor.model.gguf_file import open_gguf
from executor.model.gguf_source import open_gguf_source
from executor.model.hf_directory import open_hf_directory
from executor.model_runner import load
from tests.models import write_json, write_tiny_gguf, write_tiny_llama

pytestmark = pytest.mark.slow  # the whole run's: the fast subset stays below half a minute

EXTREMES = (0, 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1)
OPENING_BYTES_MAX = 16 << 20  # of a file of 400 KB


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("hf") / "m")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "m")


def outcome(opening: Callable[[Path], Any], path: Path) -> bool:
    """Whether it opened.  Anything but a ModelError ends the test."""
    try:
        opening(path)
    except ModelError:
        return False
    return True


def damaged_gguf(data: bytes, end: int, chance: random.Random) -> bytes:
    at = chance.randrange(4, end - 8)
    match chance.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + struct.pack("<Q", chance.choice(EXTREMES)) + data[at + 8 :]
        case 2:
            return (
                data[:at] + struct.pack("<I", chance.choice(EXTREMES) & 0xFFFFFFFF) + data[at + 4 :]
            )
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def fuzz_gguf(good: Path, path: Path, tries: int, seed: int) -> int:
    data, chance = good.read_bytes(), random.Random(seed)
    end = min(info.at for info in open_gguf(good).tensors.values())
    opened = 0
    for _ in range(tries):
        path.write_bytes(damaged_gguf(data, end, chance))
        opened += outcome(open_gguf_source, path)
    return opened


def test_a_damaged_gguf_header_is_refused_or_harmless(good: Path, tmp_path: Path) -> None:
    assert fuzz_gguf(good, tmp_path / "m.gguf", 40, 1) < 20


@pytest.mark.slow
def test_many_damaged_gguf_headers_take_no_memory(good: Path, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        assert 20 < fuzz_gguf(good, tmp_path / "m.gguf", 400, 2) < 200
        assert tracemalloc.get_traced_memory()[1] < OPENING_BYTES_MAX
    finally:
        tracemalloc.stop()


PIECES = (b"9" * 20, b"-1", b"null", b"1e999", b"[", b"true", b'"x"', b"")


def fuzz_directory(whole: Path, tries: int, seed: int) -> int:
    chance, opened = random.Random(seed), 0
    names = [file.name for file in whole.iterdir()]
    for _ in range(tries):
        file = whole / chance.choice(sorted(names))
        data = file.read_bytes()
        end = 8 + struct.unpack_from("<Q", data)[0] if file.suffix == ".safetensors" else len(data)
        bad = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(min(end, len(bad) - 1))
            bad[at : at + chance.randrange(2)] = chance.choice(PIECES)
        file.write_bytes(bad)
        opened += outcome(open_hf_directory, whole)
        file.write_bytes(data)
    return opened


def test_a_damaged_directory_is_refused_or_harmless(whole: Path) -> None:
    assert fuzz_directory(whole, 40, 3) < 30


@pytest.mark.slow
def test_many_damaged_directories_take_no_memory(whole: Path) -> None:
    tracemalloc.start()
    try:
        assert 20 < fuzz_directory(whole, 400, 4) < 240
        assert tracemalloc.get_traced_memory()[1] < OPENING_BYTES_MAX
    finally:
        tracemalloc.stop()


def tensor_entry(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return (
        struct.pack("<Q", len(name)) + name + struct.pack("<I", len(shape))
        + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)
    )  # fmt: skip


@pytest.mark.parametrize("second", (0, 32, 96))
def test_tensors_that_overlap_are_refused(tmp_path: Path, second: int) -> None:
    entries = tensor_entry(b"a", (32,), 0, 0) + tensor_entry(b"b", (32,), 0, second)
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + entries + b"\0" * 512)
    with pytest.raises(ModelError, match="'b' overlaps another"):
        open_gguf(path)


def rewritten(path: Path, extra: Callable[[gguf.GGUFWriter], None]) -> Path:
    """The tiny model with something more in it."""
    source = open_gguf(write_tiny_gguf(path.with_suffix(".plain")))
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in source.metadata.items():
        if isinstance(value, str) and name != "general.architecture":
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
    for name in source.tensors:
        writer.add_tensor(name, source.array(name))
    extra(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("extra", "says"),
    (
        (lambda writer: writer.add_tensor("blk.0.attn_sub_norm.weight", np.ones(96, np.float32)),
         "attn_sub_norm.weight', which a llama has not"),
        (lambda writer: writer.add_tensor("blk.0.attn_q.bias", np.ones(192, np.float32)),
         "lacks tensor 'blk.0.attn_k.bias'"),
        (lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(3, np.float32)), None),
        (lambda writer: writer.add_uint16("split.count", 2), "one of 2 parts"),
        (lambda writer: writer.add_uint32("llama.attention.sliding_window", 7), None),
    ),
)  # fmt: skip
def test_what_we_would_not_use_is_refused(
    tmp_path: Path, extra: Callable[[gguf.GGUFWriter], None], says: str | None
) -> None:
    path = rewritten(tmp_path / "m.gguf", extra)
    if says is None:
        assert outcome(open_gguf_source, path)
    else:
        with pytest.raises(ModelError, match=says):
            open_gguf_source(path)


def test_a_weight_of_no_weights_type_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    data = path.read_bytes()
    name = b"output_norm.weight"
    at = data.index(name) + len(name) + 4 + 8  # after the name: dimensions, then one of them
    path.write_bytes(data[:at] + struct.pack("<I", 26) + data[at + 4 :])
    with pytest.raises(ModelError, match="of type I32"):
        open_gguf_source(path)


@pytest.mark.parametrize(
    "name", ("/etc/passwd", "../m/model.safetensors", "sub/x.safetensors", "..", "x.bin", "a\\b.safetensors")
)  # fmt: skip
def test_an_index_names_only_files_of_its_directory(directory: Path, name: str) -> None:
    write_json(directory / "model.safetensors.index.json", {"weight_map": {"a": name}})
    with pytest.raises(ModelError, match="points outside"):
        open_hf_directory(directory)


@pytest.mark.parametrize("name", ("config.json", "tokenizer.json", "model.safetensors"))
def test_a_link_out_of_the_directory_is_refused(directory: Path, tmp_path: Path, name: str) -> None:
    (directory / name).rename(tmp_path / "elsewhere")
    (directory / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match=f"{name} is a link that points outside"):
        open_hf_directory(directory)


def test_the_layout_of_the_hubs_cache_is_read(directory: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for at, file in enumerate(sorted(directory.iterdir())):
        file.rename(blobs / str(at))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(at)))
    assert open_hf_directory(snapshot).config.layers == 2


@pytest.mark.parametrize("name", ("config.json", "tokenizer_config.json", "model.safetensors"))
def test_a_pipe_is_not_waited_for(directory: Path, name: str) -> None:
    (directory / name).unlink()
    os.mkfifo(directory / name)
    with pytest.raises(ModelError, match="no regular file"):
        open_hf_directory(directory)


def test_a_tensor_in_two_shards_is_refused(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").rename(directory / "a.safetensors")
    save_file({"model.norm.weight": tensors["model.norm.weight"]}, directory / "b.safetensors")
    with pytest.raises(ModelError, match="in two files"):
        open_hf_directory(directory)


def test_only_the_usual_file_is_read_where_others_lie_beside(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    save_file(tensors, directory / "consolidated.safetensors")
    assert open_hf_directory(directory).config.layers == 2


def test_a_directory_is_refused_before_its_weights_are_read(directory: Path) -> None:
    """By a tensor of the last layer, which a reader in order would come to last."""
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.ones(96, 64)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.down_proj\.weight' has shape"):
        open_hf_directory(directory)


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("value", (float("nan"), float("inf"), -float("inf")))
@pytest.mark.parametrize("name", ("model.norm.weight", "model.layers.1.mlp.up_proj.weight"))
def test_weights_that_are_no_numbers_are_refused(directory: Path, name: str, value: float) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors[name].view(-1)[3] = value
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelError, match="not-a-numbers"):
        load(directory, dtype="float32", kv_bytes=1 << 20, threads=1)


@pytest.mark.usefixtures("_threads")
def test_a_model_larger_than_memory_is_refused_by_its_numbers(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr("executor.model.hf_files.Shards.read", never)
    monkeypatch.setattr("executor.cpu.machine.available_bytes", lambda: 10_000)
    with pytest.raises(ModelError, match="needs about"):
        load(directory, dtype="float32", threads=1)
