"""The files of a Hugging Face directory: small ones read within a bound, safetensors by their headers.

Nothing outside the directory is opened, but for the layout of the hub's cache, whose snapshots link to
`blobs` beside them.  Nothing but a regular file is: a pipe would never end.
Refuses to know: architectures.  Source: the safetensors format; the hub cache's layout.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import ModelError

JSON_BYTES_MAX = 64 << 20
SHARDS_MAX = 1024
TENSORS_MAX = 1 << 16
INDEX = "model.safetensors.index.json"
PREFIXES = ("language_model.model.", "model.language_model.")
"""Where a model that also sees keeps the decoder, by age; its head is `language_model.lm_head`."""

_FLOATS = frozenset({"F32", "F16", "BF16", "F64"})


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as a header has it; `name` is the file's own."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Shards:
    tensors: Mapping[str, Stored]

    def check(self, name: str, shape: tuple[int, ...]) -> Stored:
        stored = self.tensors.get(name)
        if stored is None:
            raise ModelError(f"the model directory lacks tensor {name!r}; copy it anew")
        if stored.shape != shape:
            raise ModelError(f"tensor {name!r} has shape {stored.shape}; expected {shape}")
        if stored.dtype not in _FLOATS:
            raise ModelError(
                f"tensor {name!r} is of type {stored.dtype}; expected F32, F16 or BF16"
            )
        return stored

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        stored = self.check(name, shape)
        try:
            with safe_open(stored.path, "pt") as file:
                tensor: Tensor = file.get_tensor(stored.name)
        except (SafetensorError, OSError) as why:
            raise _damaged(stored.path, why) from why
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise ModelError(f"{stored.path.name} changed while it was read; copy it anew")
        return tensor

    def digest(self) -> str:
        """Over the digests of the files, sorted: content alone, whatever they are called."""
        each = []
        for path in {stored.path for stored in self.tensors.values()}:
            with path.open("rb") as file:
                each.append(hashlib.file_digest(file, "sha256").digest())
        return hashlib.sha256(b"".join(sorted(each))).hexdigest()


def read_file(path: Path) -> bytes:
    _check_place(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            found = file.read(min(size, JSON_BYTES_MAX) + 1)  # a buffer of that size is taken
    except OSError as why:
        raise ModelError(
            f"the model directory has no readable {path.name}; expected config.json,"
            " tokenizer.json and safetensors weights"
        ) from why
    if len(found) > JSON_BYTES_MAX:
        raise ModelError(f"{path.name} is larger than {JSON_BYTES_MAX} bytes")
    return found


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in an optional file; {} where there is none."""
    if not path.exists():
        return {}
    try:
        found = msgspec.json.decode(read_file(path), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise ModelError(f"{path.name} is not a JSON object ({why!s:.200}); copy it anew") from why
    return found


def open_shards(path: Path) -> Shards:
    """Where each tensor is.  The headers are checked by the safetensors library: lengths, overlaps
    and the end of the file."""
    stored: dict[str, Stored] = {}
    for file in _files(path):
        for one in _headers(file):
            if one.name in stored:
                raise ModelError(f"tensor {one.name!r:.80} is in two files; copy the model anew")
            stored[one.name] = one
        if len(stored) > TENSORS_MAX:
            raise ModelError(f"the model has more than {TENSORS_MAX} tensors")
    return Shards({_plain_name(name): one for name, one in stored.items()})


def _plain_name(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    return (
        name.removeprefix("language_model.") if name.startswith("language_model.lm_head") else name
    )


def _headers(file: Path) -> list[Stored]:
    _check_place(file)
    try:
        with safe_open(file, "pt") as opened:
            found = []
            for name in opened.keys():  # noqa: SIM118  # not a dict
                part = opened.get_slice(name)
                found.append(Stored(file, name, tuple(part.get_shape()), part.get_dtype()))
            return found
    except (SafetensorError, OSError) as why:
        raise _damaged(file, why) from why


def _files(path: Path) -> list[Path]:
    if (path / INDEX).exists():
        names = json_object(path / INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(one, str) for one in names.values()):
            raise ModelError(f"{INDEX} has no weight_map; copy it anew")
        files = [path / _within(name) for name in sorted(set(names.values()))]
    elif (path / "model.safetensors").exists():
        files = [path / "model.safetensors"]  # beside it may lie the same in its maker's own layout
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
    return files


def _within(name: str) -> str:
    if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
        raise ModelError(f"{INDEX} points outside the directory; refused")
    return name


def _check_place(path: Path) -> None:
    """ModelError for what is no regular file, or lies elsewhere behind a link."""
    directory = path.parent.resolve()
    homes = [directory]
    if directory.parent.name == "snapshots":
        homes.append(directory.parent.parent / "blobs")
    target = path.resolve()
    if path.is_symlink() and target.parent not in homes:
        raise ModelError(
            f"{path.name} is a link that points outside the model directory; copy the file there"
        )
    if path.exists() and not path.is_file():
        raise ModelError(f"{path.name} is no regular file; copy the model directory anew")


def _damaged(path: Path, why: Exception) -> ModelError:
    return ModelError(f"{path.name} is damaged or truncated ({why!s:.200}); copy it anew")
