"""A model in a Hugging Face directory: config.json, tokenizer.json, safetensors weights.

Safetensors only: opening a pickle runs code that it brings.  Which of the places may hold a fact, and
in what order, is in the functions below; a directory that leaves one out is refused by its name.
Source: the layout that transformers' `save_pretrained` writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer
from torch import Tensor

from .config import ModelConfig
from .errors import ModelError
from .hf_families import from_hf
from .hf_files import Shards, json_object, open_shards, read_file
from .source import END_NAMES, TEMPLATE_BYTES_MAX, QuantBlocks, TokenizerCard


@dataclass(frozen=True, slots=True)
class HfSource:
    """`norm_offset`: what the model adds to the stored weight of every norm."""

    shards: Shards
    config: ModelConfig
    tokenizer: TokenizerCard
    norm_offset: float

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self.shards.read(name, shape)
        return found.float() + self.norm_offset if name.endswith("norm.weight") else found

    def blocks(self, name: str, shape: tuple[int, ...]) -> QuantBlocks | None:
        return None

    def rope_divisors(self) -> Tensor | None:
        return None

    def digest(self) -> str:
        return self.shards.digest()


def open_hf_directory(path: Path) -> HfSource:
    """Configuration, tokenizer and the headers of the weights checked whole; no weight is read."""
    found = from_hf(read_file(path / "config.json"))
    shards = open_shards(path)
    card = _tokenizer_card(path, found.config, found.bos, found.eos)
    for name, shape in found.config.tensors.items():
        shards.check(name, shape)
    return HfSource(shards, found.config, card, found.norm_offset)


def _tokenizer_card(
    path: Path, config: ModelConfig, bos: int | None, eos: tuple[int, ...]
) -> TokenizerCard:
    document, tokenizer = _tokenizer(path / "tokenizer.json", config.vocab_size)
    added = tokenizer.get_added_tokens_decoder()
    special = tuple(sorted(at for at, token in added.items() if token.special))
    settings = json_object(path / "tokenizer_config.json")
    ends = set(eos) | set(_eos_of(json_object(path / "generation_config.json")))
    by_name = {token.content: at for at, token in added.items()}
    ends |= {by_name[name] for name in END_NAMES if name in by_name and by_name[name] in special}
    if (named := _name_of(settings.get("eos_token"))) in by_name:
        ends.add(by_name[named])
    if bos is None:
        bos = by_name.get(_name_of(settings.get("bos_token")))
    for at in (*ends, *(() if bos is None else (bos,))):
        if not 0 <= at < config.vocab_size:
            raise ModelError(f"bos or eos token id {at} is outside the vocabulary")
    prepends = settings.get("add_bos_token")
    if not isinstance(prepends, bool):
        prepends = tokenizer.encode("a").ids[:1] == [bos]
    return TokenizerCard(
        document=document,
        chat_template=_chat_template(path, settings),
        bos_id=bos,
        eos_ids=tuple(sorted(ends)),
        special_ids=special,
        add_bos=prepends and bos is not None,
    )


def _tokenizer(path: Path, vocab_size: int) -> tuple[bytes, Tokenizer]:
    """Without those added tokens that the model has no rows for: Gemma's text models have the one
    that stands for an image in those that see.  As text it is ordinary then."""
    document = read_file(path)
    found = _built(document)
    if _highest(found) >= vocab_size:
        parts = msgspec.json.decode(document)
        parts["added_tokens"] = [
            one for one in parts.get("added_tokens", ()) if one["id"] < vocab_size
        ]
        document = msgspec.json.encode(parts)
        found = _built(document)
    if (highest := _highest(found)) >= vocab_size:
        raise ModelError(
            f"tokenizer.json holds token id {highest}, but the model only {vocab_size} rows"
        )
    return document, found


def _built(document: bytes) -> Tokenizer:
    try:
        return Tokenizer.from_str(document.decode())
    except Exception as why:  # tokenizers raises bare Exception
        raise ModelError(f"tokenizer.json cannot be read: {why!s:.200}") from why


def _highest(tokenizer: Tokenizer) -> int:
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def _name_of(token: Any) -> str:
    """`"</s>"`, or `{"content": "</s>", …}` as older files have it; "" where absent."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _eos_of(generation: dict[str, Any]) -> list[int]:
    found = generation.get("eos_token_id")
    listed = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(one, int) for one in listed):
        raise ModelError("generation_config.json: eos_token_id is no id or list of ids")
    return listed


def _chat_template(path: Path, settings: dict[str, Any]) -> str | None:
    """In a file of its own, among several, or in the settings, as the years had it."""
    own = [path / "chat_template.jinja", path / "additional_chat_templates" / "default.jinja"]
    found: Any = settings.get("chat_template")
    if file := next((file for file in own if file.exists()), None):
        try:
            found = read_file(file).decode()
        except UnicodeDecodeError as why:
            raise ModelError(f"{file.name} is not UTF-8; copy it anew") from why
    elif isinstance(found, list):  # several by name; ours is the default one
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise ModelError("the chat template in tokenizer_config.json is no text")
    if found is not None and len(found.encode()) > TEMPLATE_BYTES_MAX:
        raise ModelError(f"the chat template is larger than {TEMPLATE_BYTES_MAX} bytes")
    return found
