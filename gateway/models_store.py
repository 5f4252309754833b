"""Where a model of the configuration lies: a built-in alias, a directory, a .gguf file, a hub id.

Only finds; what is inside is the executor's to read.  A hub id is fetched when `huggingface_hub` is
installed, and only the file kinds that a model needs: never code, never pickles.
Source: DESIGN.md (Default model).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {"smollm2-135m": "smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"}
)
WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)


class ModelMissing(Exception):
    """The message: what was looked for, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Found:
    """`path` is a directory with config.json and safetensors, or a .gguf file."""

    path: Path


def find(where: str, models_dir: Path) -> Found:
    """The model that is already on this machine.  Raises ModelMissing."""
    if where in BUILT_IN:
        path = models_dir / BUILT_IN[where]
        if path.is_file():
            return Found(path.resolve())
        raise ModelMissing(
            f"The built-in model {where} is not in {models_dir}. 'python3 deploy/dev.py serve', with the "
            "options you gave, fetches it; or let LOCKGATE_MODELS_DIR name the folder that holds it, or "
            "name a directory or .gguf file of yours."
        )
    path = Path(where)
    if path.is_dir():
        return Found(_directory(path))
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelMissing(
                f"{path} is not a .gguf file. Expected one, or a directory of safetensors."
            )
        return Found(path.resolve())
    fetched = models_dir / where.replace("/", "--")
    if is_hub_id(where) and fetched.is_dir():
        return Found(_directory(fetched))
    raise ModelMissing(
        f"There is no model at {where}. Expected a directory of safetensors, a .gguf file, a hub id "
        f"such as owner/name, or one of: {', '.join(BUILT_IN)}."
    )


def fetch(where: str, models_dir: Path) -> Found:
    """`find`, and where that fails and `where` is a hub id, a download.  Blocks.  Raises ModelMissing."""
    try:
        return find(where, models_dir)
    except ModelMissing:
        if not is_hub_id(where):
            raise
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelMissing(
            f"{where} looks like a hub id, and huggingface_hub is not installed. Install it, or name a "
            "directory or .gguf file."
        ) from None
    target = models_dir / where.replace("/", "--")
    try:
        snapshot_download(where, local_dir=target, allow_patterns=list(WANTED))
    except Exception as error:
        # Its exceptions are many and of no common kind; each means that nothing whole has arrived.
        raise ModelMissing(
            f"{where} could not be fetched ({type(error).__name__}). Check the id and the network, or "
            "name a directory or .gguf file."
        ) from error
    return Found(_directory(target))


def is_hub_id(where: str) -> bool:
    return _HUB_ID.fullmatch(where) is not None and ".." not in where


def _directory(path: Path) -> Path:
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    if not any(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ModelMissing(
            f"{path} lacks {', '.join(missing)}. Expected a Hugging Face model directory "
            "(safetensors), or a .gguf file."
        )
    return path.resolve()
