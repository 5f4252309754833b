"""Hugging Face directories: every place a fact may stand, and refusals that name the fix."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from executor.contract import ModelCard
from executor.model.config import RopeKind
from executor.model.hf_directory import open_hf_directory
from executor.model.rope import frequencies
from executor.model_runner import ModelError, load
from tests.models import LLAMA3_ROPE, TEMPLATE, tiny_config, write_json, write_tiny_llama


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "m")


def card_of(directory: Path) -> ModelCard:
    before = torch.get_num_threads()
    try:
        return load(directory, dtype="float32", kv_bytes=1 << 20, threads=1)[0]
    finally:
        torch.set_num_threads(before)


def test_the_card_says_what_the_files_say(directory: Path) -> None:
    card = card_of(directory)
    assert (card.architecture, card.dtype, card.numerics, card.device) == (
        "llama",
        "float32",
        "fast",
        "cpu",
    )
    assert card.vocab_size == 320
    assert card.eos_token_ids == (0, 2)
    assert card.bos_token_id == 1
    assert card.chat_template == TEMPLATE
    assert not card.add_bos
    stored = load_file(directory / "model.safetensors")
    assert card.parameters == sum(tensor.numel() for tensor in stored.values())
    assert all(
        len(one) == 64 for one in (card.weights_digest, card.tokenizer_digest, card.template_digest)
    )


def test_digests_are_of_content_not_of_names(directory: Path) -> None:
    first = card_of(directory).weights_digest
    (directory / "model.safetensors").rename(directory / "other.safetensors")
    assert card_of(directory).weights_digest == first
    tensors = load_file(directory / "other.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, directory / "other.safetensors")
    assert card_of(directory).weights_digest != first


def test_old_and_new_rope_settings_mean_the_same(tmp_path: Path) -> None:
    new = open_hf_directory(write_tiny_llama(tmp_path / "new")).config
    scaling = {name: value for name, value in LLAMA3_ROPE.items() if name != "rope_theta"}
    old = tiny_config(rope_theta=10_000.0, rope_scaling=scaling)
    del old["rope_parameters"]
    write_json(tmp_path / "new" / "config.json", old)
    assert open_hf_directory(tmp_path / "new").config.ropes == new.ropes
    assert new.ropes[0].kind is RopeKind.LLAMA3


def test_linear_rope_stretches_positions(tmp_path: Path) -> None:
    rope = {"type": "linear", "factor": 4.0}
    config = open_hf_directory(
        write_tiny_llama(tmp_path / "m", rope_parameters=None, rope_scaling=rope)
    ).config
    plain = open_hf_directory(write_tiny_llama(tmp_path / "p", rope_parameters=None)).config
    assert torch.equal(frequencies(config.ropes[0], 32) * 4, frequencies(plain.ropes[0], 32))


def test_templates_are_found_in_their_order(directory: Path) -> None:
    settings = directory / "tokenizer_config.json"
    write_json(
        settings,
        {"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]},
    )
    assert open_hf_directory(directory).tokenizer.chat_template == "d"
    (directory / "chat_template.jinja").write_text("jinja")
    assert open_hf_directory(directory).tokenizer.chat_template == "jinja"
    (directory / "chat_template.jinja").unlink()
    settings.unlink()
    assert open_hf_directory(directory).tokenizer.chat_template is None


def test_additional_templates_come_before_the_settings(directory: Path) -> None:
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "default.jinja").write_text("added")
    assert open_hf_directory(directory).tokenizer.chat_template == "added"


def test_an_added_token_without_a_row_becomes_text(tmp_path: Path) -> None:
    """Gemma 3's text models: one token for images more than rows."""
    directory = write_tiny_llama(tmp_path / "m", vocab_size=300)
    document = msgspec.json.decode((directory / "tokenizer.json").read_bytes())
    beyond = document["added_tokens"][0] | {"id": 300, "content": "<image>"}
    document["added_tokens"].append(beyond)
    write_json(directory / "tokenizer.json", document)
    card = open_hf_directory(directory).tokenizer
    ids = Tokenizer.from_buffer(card.document).encode("<image>").ids
    assert len(ids) > 1
    assert max(ids) < 300
    assert 300 not in card.special_ids


def test_bos_is_added_where_the_tokenizer_would(directory: Path) -> None:
    write_json(directory / "tokenizer_config.json", {"add_bos_token": True})
    assert open_hf_directory(directory).tokenizer.add_bos


def test_shards_are_read_through_their_index(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    before = open_hf_directory(directory).read("model.norm.weight", (96,))
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, directory / file)
    index = {name: file for file, held in parts.items() for name in held}
    write_json(directory / "model.safetensors.index.json", {"weight_map": index})
    assert torch.equal(open_hf_directory(directory).read("model.norm.weight", (96,)), before)
    index["model.norm.weight"] = "../elsewhere.safetensors"
    write_json(directory / "model.safetensors.index.json", {"weight_map": index})
    with pytest.raises(ModelError, match="outside the directory"):
        open_hf_directory(directory)


@pytest.mark.parametrize(
    ("changes", "says"),
    (
        ({"model_type": "phi3"}, "architecture 'phi3' is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"attention_bias": True}, r"q_proj\.bias"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope kind 'longrope'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "x"}}, "factor"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"num_hidden_layers": 100_000}, "layers is 100000"),
        ({"num_hidden_layers": 3}, r"layers\.2"),
        ({"vocab_size": 10}, "token id"),
        ({"vocab_size": 1 << 20}, "has shape"),
        ({"num_key_value_heads": 4}, "cannot be shared"),
        ({"head_dim": 31}, "even number"),
        ({"head_dim": None, "hidden_size": 97}, "no multiple"),
        ({"tie_word_embeddings": False}, r"lm_head\.weight"),
        ({"eos_token_id": [2, 999]}, "outside the vocabulary"),
        ({"rms_norm_eps": 2.0}, "epsilon"),
    ),
)  # fmt: skip
def test_a_configuration_that_cannot_be_served_is_refused(
    directory: Path, changes: dict[str, Any], says: str
) -> None:
    write_json(directory / "config.json", tiny_config(**changes))
    with pytest.raises(ModelError, match=says):
        card_of(directory)


def _cut(data: bytes) -> bytes:
    return data[:-100]


def _huge_header(data: bytes) -> bytes:
    return struct.pack("<Q", 1 << 62) + data[8:]


def _lying_offsets(data: bytes) -> bytes:
    length = struct.unpack_from("<Q", data)[0]
    header = msgspec.json.decode(data[8 : 8 + length])
    header["model.norm.weight"]["data_offsets"] = [0, 1 << 50]
    document = msgspec.json.encode(header)
    return struct.pack("<Q", len(document)) + document + data[8 + length :]


def _deep_header(data: bytes) -> bytes:
    document = b"[" * 100_000
    return struct.pack("<Q", len(document)) + document


@pytest.mark.parametrize("damage", (_cut, _huge_header, _lying_offsets, _deep_header))
def test_safetensors_that_lie_are_refused(
    directory: Path, damage: Callable[[bytes], bytes]
) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ModelError, match="damaged or truncated"):
        open_hf_directory(directory)


def test_weights_of_a_wrong_kind_are_refused(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(96, dtype=torch.int64)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelError, match="of type I64"):
        card_of(directory)


def test_pickled_weights_are_refused_with_the_reason(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelError, match="runs code"):
        open_hf_directory(directory)


@pytest.mark.parametrize("name", ("config.json", "tokenizer.json", "model.safetensors"))
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(ModelError, match=name.partition(".")[2]):
        open_hf_directory(directory)


@pytest.mark.parametrize(
    "name", ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
)
@pytest.mark.parametrize("data", (b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000))
def test_broken_json_is_refused(directory: Path, name: str, data: bytes) -> None:
    (directory / name).write_bytes(data)
    with pytest.raises(ModelError, match=name):
        open_hf_directory(directory)
