"""GGUF files: read right, and refused with a sentence when they lie."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
import torch
from tokenizers import Tokenizer

from executor.batch import Batch, Row
from executor.model.gguf_file import open_gguf
from executor.model.gguf_source import open_gguf_source
from executor.model_runner import ModelError, load
from tests.models import SPECIALS, tiny_tokenizer, write_tiny_gguf, write_tiny_llama

Q4_0, Q4_1 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1
Q8_0 = gguf.GGMLQuantizationType.Q8_0


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before = torch.get_num_threads()
    yield write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
    torch.set_num_threads(before)


def test_the_same_weights_answer_the_same_from_both_kinds_of_file(
    good: Path, tmp_path: Path
) -> None:
    directory = write_tiny_llama(tmp_path / "m", rope_parameters={"rope_theta": 10_000.0})
    batch = Batch([Row(list(range(3, 60)), 0, [0, 1], wants_logits=True)])
    found = []
    for path in (good, directory):
        card, runner = load(path, dtype="float32", kv_bytes=1 << 20, threads=1)
        found.append((card, runner.run(batch)))
    (one, logits), (two, expected) = found
    assert torch.allclose(logits, expected, atol=1e-5)
    assert (one.parameters, one.context_tokens) == (two.parameters, two.context_tokens)
    assert one.chat_template == two.chat_template
    assert one.eos_token_ids == two.eos_token_ids == (0, 2)
    assert one.special_token_ids == two.special_token_ids == (0, 1, 2)
    assert one.template_digest == two.template_digest != ""


def test_a_q_that_is_not_unpermuted_would_be_seen(good: Path) -> None:
    source = open_gguf_source(good)
    raw = torch.from_numpy(source.file.array("blk.0.attn_q.weight"))
    assert not torch.equal(raw, source.read("model.layers.0.self_attn.q_proj.weight", raw.shape))


def test_quantised_tensors_come_back_near_the_original(good: Path, tmp_path: Path) -> None:
    kinds = {"blk.0.ffn_up.weight": Q4_1, "token_embd.weight": Q8_0}
    file, plain = open_gguf(write_tiny_gguf(tmp_path / "q.gguf", kinds=kinds)), open_gguf(good)
    for name, kind in kinds.items():
        assert file.tensors[name].kind is kind
        a, b = torch.from_numpy(file.array(name)), torch.from_numpy(plain.array(name))
        assert 0 < float((a - b).norm() / b.norm()) < 0.1


def test_the_built_tokenizer_encodes_like_the_original(good: Path) -> None:
    original, built = (
        tiny_tokenizer(),
        Tokenizer.from_str(open_gguf_source(good).tokenizer.document.decode()),
    )
    chance = random.Random(4)
    texts = [
        "the lock gate 12 opens",
        "<|im_start|>user\n<|im_end|>",
        "ça va, 水門 ½ Ⅷ ٣",
        "  a\n\n b\t",
    ]
    texts += [
        "".join(chr(chance.choice((32, 97, 101, 49, 0x17F, 0x6C34, 10))) for _ in range(40))
        for _ in range(30)
    ]
    for text in texts:
        assert built.encode(text).ids == original.encode(text).ids, text
        assert built.decode(built.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("changes", "adds"),
    (
        ({}, False),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": 0}, False),
        ({"tokenizer.ggml.add_bos_token": 1}, True),
        ({"tokenizer.ggml.add_bos_token": 1, "tokenizer.ggml.bos_token_id": None}, False),
    ),
)
def test_a_bos_is_added_where_its_makers_add_it(
    tmp_path: Path, changes: dict[str, Any], adds: bool
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata=changes)
    assert open_gguf_source(path).tokenizer.add_bos == adds


def test_special_tokens_are_added_as_special(good: Path) -> None:
    document = msgspec.json.decode(open_gguf_source(good).tokenizer.document)
    assert [token["content"] for token in document["added_tokens"]] == list(SPECIALS)
    assert all(token["special"] and not token["normalized"] for token in document["added_tokens"])


@pytest.mark.parametrize(
    "pre", ("gpt-2", "llama-bpe", "smaug-bpe", "qwen2", "tekken", "refact", "default")
)
def test_each_pre_tokenizer_builds_and_loses_nothing(tmp_path: Path, pre: str) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": pre})
    built = Tokenizer.from_str(open_gguf_source(path).tokenizer.document.decode())
    for text in ("Hello, it's 2026!\n\n  x = 12345", "ça va ? 水"):
        assert built.decode(built.encode(text).ids) == text


@pytest.mark.parametrize(
    ("pre", "words"),
    (
        ("llama-bpe", ["HelloWorld", "'s", "Ġ", "123", "45", "a", "/Ċ"]),
        ("qwen2", ["HelloWorld", "'s", "Ġ", "1", "2", "3", "4", "5", "a", "/Ċ"]),
        ("tekken", ["Hello", "World", "'s", "Ġ", "1", "2", "3", "4", "5", "a", "/Ċ"]),
        ("refact", ["HelloWorld", "'s", "Ġ", "1", "2", "3", "4", "5", "a", "/", "Ċ"]),
    ),
)
def test_words_are_parted_where_their_makers_part_them(
    tmp_path: Path, pre: str, words: list[str]
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": pre})
    built = Tokenizer.from_str(open_gguf_source(path).tokenizer.document.decode())
    assert built.pre_tokenizer is not None
    assert [
        word for word, _ in built.pre_tokenizer.pre_tokenize_str("HelloWorld's 12345a/\n")
    ] == words
    composed = built.encode("e\u0301").ids == built.encode("\u00e9").ids
    assert composed == (pre == "qwen2")


def test_blocks_are_what_read_gives_before_they_are_unpacked(tmp_path: Path) -> None:
    kinds = {"blk.0.attn_q.weight": Q4_0, "blk.0.attn_k.weight": Q4_1, "blk.1.ffn_up.weight": Q4_1}
    source = open_gguf_source(write_tiny_gguf(tmp_path / "q.gguf", kinds=kinds))
    for name, shape, kind in (
        ("model.layers.0.self_attn.q_proj.weight", (192, 96), "q4_0"),
        ("model.layers.0.self_attn.k_proj.weight", (64, 96), "q4_1"),
        ("model.layers.1.mlp.up_proj.weight", (128, 96), "q4_1"),
    ):
        blocks = source.blocks(name, shape)
        assert blocks is not None
        assert blocks.kind == kind
        bytes_a_block = 18 if kind == "q4_0" else 20
        assert blocks.data.shape == (shape[0], shape[1] // 32, bytes_a_block)
        floats = blocks.data[..., : bytes_a_block - 16].view(torch.float16).float()
        low, high = blocks.data[..., -16:] & 15, blocks.data[..., -16:] >> 4
        nibbles = torch.cat((low, high), -1).float()
        least = -8 * floats[..., :1] if kind == "q4_0" else floats[..., 1:]
        assert torch.equal(
            (floats[..., :1] * nibbles + least).view(shape), source.read(name, shape)
        )
    assert source.blocks("model.layers.0.mlp.up_proj.weight", (128, 96)) is None
    with pytest.raises(ModelError, match="expected \\(64, 64\\)"):
        source.blocks("model.layers.0.self_attn.k_proj.weight", (64, 64))


def test_blocks_with_a_scale_that_is_no_number_are_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "q.gguf", kinds={"blk.0.ffn_up.weight": Q4_1})
    data = bytearray(path.read_bytes())
    info = open_gguf(path).tensors["blk.0.ffn_up.weight"]
    data[info.at + 42 : info.at + 44] = struct.pack("<e", float("nan"))  # a minimum
    path.write_bytes(data)
    with pytest.raises(ModelError, match="not-a-numbers"):
        open_gguf_source(path).blocks("model.layers.0.mlp.up_proj.weight", (128, 96))


@pytest.mark.parametrize(
    ("metadata", "says"),
    (
        ({"general.architecture": "phi3"}, "architecture 'phi3' is not supported"),
        ({"tokenizer.ggml.model": "llama"}, "Hugging Face directory"),
        ({"tokenizer.ggml.pre": "viking"}, "pre-tokenizer 'viking'"),
        ({"tokenizer.ggml.tokens": None}, "no vocabulary"),
        ({"tokenizer.ggml.merges": ["a"]}, "merges"),
        ({"tokenizer.ggml.merges": ["zz yy"]}, "cannot be built"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "token_type"),
        ({"tokenizer.ggml.eos_token_id": 100_000}, "eos token id"),
        ({"llama.rope.scaling.type": "longrope"}, "rope kind 'longrope'"),
        ({"llama.rope.dimension_count": 8}, "partial rotary"),
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.block_count": None}, "llama.block_count"),
        ({"llama.block_count": 3}, "blk.2.attn_norm.weight"),
        ({"llama.block_count": 1_000_000}, "layers is 1000000"),
        ({"llama.feed_forward_length": 64}, "has shape"),
        ({"llama.attention.head_count": 0}, "heads"),
        ({"llama.attention.head_count_kv": 5}, "cannot be shared"),
        ({"llama.embedding_length": "96"}, "llama.embedding_length"),
    ),
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(
    tmp_path: Path, metadata: dict[str, Any], says: str
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(ModelError, match=says):
        load(path, dtype="float32", kv_bytes=1 << 20, threads=1)


def test_not_a_number_in_the_weights_is_refused(good: Path, tmp_path: Path) -> None:
    data = bytearray(good.read_bytes())
    info = open_gguf(good).tensors["blk.1.ffn_down.weight"]
    data[info.at + 40 : info.at + 44] = struct.pack("<f", float("nan"))
    bad = tmp_path / "nan.gguf"
    bad.write_bytes(data)
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.down_proj.*not-a-numbers"):
        load(bad, dtype="float32", kv_bytes=1 << 20, threads=1)


def test_a_file_cut_anywhere_is_refused(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    bad = tmp_path / "cut.gguf"
    for length in (4, 8, 23, 24, 100, 1000, 5000, len(data) // 2, len(data) - 40):
        bad.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"trunc|ends within"):
            open_gguf(bad)
    bad.write_bytes(b"")
    with pytest.raises(ModelError, match="not a GGUF file"):
        open_gguf(bad)


def header(version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def key(name: bytes, kind: int, rest: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + rest


@pytest.mark.parametrize(
    ("data", "says"),
    (
        (header(version=1), "version 1"),
        (header(version=3 << 24), "little-endian"),
        (header(tensors=1 << 40), "claims"),
        (header(keys=1 << 40), "claims"),
        (header(keys=1) + struct.pack("<Q", 1 << 63), "ends within"),
        (header(keys=1) + key(b"a", 9, struct.pack("<IQ", 8, 1 << 60)), "array elements"),
        (header(keys=1) + key(b"a", 9, struct.pack("<IQ", 8, 1 << 20)), "ends within"),
        (header(keys=1) + key(b"a", 9, struct.pack("<IQ", 9, 1)) * 2, "arrays of type 9"),
        (header(keys=1) + key(b"a", 77, b""), "unknown type 77"),
        (header(keys=2) + key(b"a", 0, b"1") * 2, "appears twice"),
        (header(keys=1) + key(b"\xff", 0, b"1"), "UTF-8"),
        (header(tensors=1) + key(b"t", 9, b""), "9 dimensions"),
        (header(tensors=1) + key(b"t", 1, struct.pack("<QIQ", 0, 0, 0)), "empty dimension"),
        (header(tensors=1) + key(b"t", 1, struct.pack("<QIQ", 8, 250, 0)), "type 250"),
        (header(tensors=1) + key(b"t", 1, struct.pack("<QIQ", 8, 3, 0)), "divide into blocks"),
        (header(tensors=1) + key(b"t", 2, struct.pack("<QQIQ", 1 << 62, 1 << 62, 0, 0)), "beyond the end"),
        (header(tensors=1) + key(b"t", 1, struct.pack("<QIQ", 8, 0, 1 << 63)), "beyond the end"),
        (header(tensors=1, keys=1) + key(b"general.alignment", 4, b"\0" * 4)
         + key(b"t", 1, struct.pack("<QIQ", 8, 0, 0)), "alignment"),
    ),
)  # fmt: skip
def test_a_header_that_lies_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=says):
        open_gguf(path)


def test_flipped_bytes_never_do_worse_than_a_refusal(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    end = min(info.at for info in open_gguf(good).tensors.values())
    chance, path = random.Random(11), tmp_path / "m.gguf"
    refused = 0
    for _ in range(60):
        bad = bytearray(data)
        for _ in range(3):
            bad[chance.randrange(end)] = chance.randrange(256)
        path.write_bytes(bad)
        try:
            open_gguf_source(path)
        except ModelError:
            refused += 1
    assert refused > 5


def test_other_doors_are_shut(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model at"):
        load(tmp_path / "absent.gguf")
    pickle = tmp_path / "pytorch_model.bin"
    pickle.write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match="is a pickle"):
        load(pickle)
    for wrong in ({"device": "tpu"}, {"numerics": "loose"}, {"dtype": "float8"}):
        with pytest.raises(ModelError, match="expected"):
            load(pickle, **wrong)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    ("wrong", "says"),
    (
        ({"context_tokens": 513}, "takes 1 to 512"),
        ({"kv_bytes": 10}, "holds no block"),
        ({"kv_bytes": 1 << 60}, "exceeds"),
    ),
)
def test_sizes_that_cannot_be_had_are_refused(good: Path, wrong: dict[str, int], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        load(good, threads=1, **wrong)  # type: ignore[arg-type]  # a dict of the named integers


def test_memory_for_keys_is_no_more_than_sixty_four_contexts(good: Path) -> None:
    card, runner = load(good, dtype="float32", threads=1, context_tokens=100)
    assert card.context_tokens == runner.context_tokens == 100
    assert card.kv_blocks == runner.kv_blocks == 64 * 4
