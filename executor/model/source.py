"""What every kind of model file gives: configuration, tokenizer, and tensors by their Hugging Face
names, one at a time.  Behind it stand `gguf_source` and `hf_directory`; before it, `weights`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

TEMPLATE_BYTES_MAX = 1 << 20
END_NAMES = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>")
"""Control tokens after which a model has nothing sensible to say, whatever its metadata names."""


@dataclass(frozen=True, slots=True)
class TokenizerCard:
    """`document`: a Hugging Face `tokenizers` JSON.  `special_ids`: what only a scaffold may yield."""

    document: bytes
    chat_template: str | None
    bos_id: int | None
    eos_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    add_bos: bool


class ModelSource(Protocol):
    @property
    def config(self) -> ModelConfig: ...

    @property
    def tokenizer(self) -> TokenizerCard: ...

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of that Hugging Face name, floating point; q and k in the half-split rotary
        layout.  ModelError if it is absent, of another shape, or of a type we cannot read."""
        ...

    def rope_divisors(self) -> Tensor | None: ...

    def digest(self) -> str:
        """SHA-256 of the weights' content, hex."""
        ...
