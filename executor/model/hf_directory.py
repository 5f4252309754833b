"""A Llama in a Hugging Face directory: config.json, tokenizer.json, safetensors (one file or shards).

No pickle: directories that hold only .bin or .pt weights are refused, since opening those runs code.
Source: the layout that transformers' `save_pretrained` writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from .config import ModelConfig, from_hf
from .errors import ModelError
from .source import END_NAMES, TEMPLATE_BYTES_MAX, QuantBlocks, TokenizerCard

JSON_BYTES_MAX = 64 << 20
SHARDS_MAX = 1024
_FLOATS = frozenset({"F32", "F16", "BF16", "F64"})


@dataclass(frozen=True, slots=True)
class HfSource:
    shards: Mapping[str, Path]  # tensor name → file
    config: ModelConfig
    tokenizer: TokenizerCard

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        path = self.shards.get(name)
        if path is None:
            raise ModelError(f"the model directory lacks tensor {name!r}; copy it anew")
        try:
            with safe_open(path, "pt") as file:
                part = file.get_slice(name)
                found, dtype = tuple(part.get_shape()), part.get_dtype()
                if found != shape:
                    raise ModelError(f"tensor {name!r} has shape {found}; expected {shape}")
                if dtype not in _FLOATS:
                    raise ModelError(
                        f"tensor {name!r} is of type {dtype}; expected F32, F16 or BF16"
                    )
                tensor: Tensor = file.get_tensor(name)
                return tensor
        except (SafetensorError, OSError) as why:
            raise _damaged(path, why) from why

    def blocks(self, name: str, shape: tuple[int, ...]) -> QuantBlocks | None:
        return None

    def rope_divisors(self) -> Tensor | None:
        return None

    def digest(self) -> str:
        """Over the digests of the files, sorted: content alone, whatever they are called."""
        each = []
        for path in set(self.shards.values()):
            with path.open("rb") as file:
                each.append(hashlib.file_digest(file, "sha256").digest())
        return hashlib.sha256(b"".join(sorted(each))).hexdigest()


def open_hf_directory(path: Path) -> HfSource:
    config, bos, eos = from_hf(_bytes(path / "config.json"))
    shards = _shards(path)
    return HfSource(shards, config, _tokenizer_card(path, config, bos, eos))


def _damaged(path: Path, why: Exception) -> ModelError:
    return ModelError(f"{path.name} is damaged or truncated ({why!s:.200}); copy it anew")


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            found = file.read(JSON_BYTES_MAX + 1)
    except OSError as why:
        raise ModelError(
            f"the model directory has no readable {path.name}; expected config.json,"
            " tokenizer.json and safetensors weights"
        ) from why
    if len(found) > JSON_BYTES_MAX:
        raise ModelError(f"{path.name} is larger than {JSON_BYTES_MAX} bytes")
    return found


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in an optional file; {} where there is none."""
    if not path.exists():
        return {}
    try:
        found = msgspec.json.decode(_bytes(path), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise ModelError(f"{path.name} is not a JSON object ({why!s:.200}); copy it anew") from why
    return found


def _shards(path: Path) -> dict[str, Path]:
    """Where each tensor is.  The headers are checked by the safetensors library: lengths, overlaps
    and the end of the file."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = _object(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(one, str) for one in names.values()):
            raise ModelError("model.safetensors.index.json has no weight_map; copy it anew")
        files = [path / _plain(name) for name in sorted(set(names.values()))]
    else:
        files = sorted(path.glob("*.safetensors"))
    if not files:
        if any(one for end in ("bin", "pt", "pth") for one in path.glob(f"*.{end}")):
            raise ModelError(
                "the model directory has only pickled weights (.bin, .pt), and opening those runs"
                " code that they bring; convert them to safetensors"
            )
        raise ModelError("the model directory has no .safetensors file; copy it anew")
    if len(files) > SHARDS_MAX:
        raise ModelError(f"the model has more than {SHARDS_MAX} shards")
    found: dict[str, Path] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                found.update(dict.fromkeys(opened.keys(), file))
        except (SafetensorError, OSError) as why:
            raise _damaged(file, why) from why
    return found


def _plain(name: str) -> str:
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise ModelError("model.safetensors.index.json points outside the directory; refused")
    return name


def _tokenizer_card(
    path: Path, config: ModelConfig, bos: int | None, eos: tuple[int, ...]
) -> TokenizerCard:
    document = _bytes(path / "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_str(document.decode())
    except Exception as why:  # tokenizers raises bare Exception
        raise ModelError(f"tokenizer.json cannot be read: {why!s:.200}") from why
    added = tokenizer.get_added_tokens_decoder()
    special = tuple(sorted(at for at, token in added.items() if token.special))
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= config.vocab_size:
        raise ModelError(
            f"tokenizer.json holds token id {highest}, but the model only {config.vocab_size} rows"
        )
    settings = _object(path / "tokenizer_config.json")
    ends = set(eos) | set(_eos_of(_object(path / "generation_config.json")))
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
    file = path / "chat_template.jinja"
    found: Any = settings.get("chat_template")
    if file.exists():
        try:
            found = _bytes(file).decode()
        except UnicodeDecodeError as why:
            raise ModelError("chat_template.jinja is not UTF-8; copy it anew") from why
    elif isinstance(found, list):  # several by name; ours is the default one
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise ModelError("the chat template in tokenizer_config.json is no text")
    if found is not None and len(found.encode()) > TEMPLATE_BYTES_MAX:
        raise ModelError(f"the chat template is larger than {TEMPLATE_BYTES_MAX} bytes")
    return found
