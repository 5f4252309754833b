"""What every kind of model file gives: configuration, tokenizer, and tensors by their Hugging Face
names, one at a time.  Behind it stand `gguf_source` and `hf_directory`; before it, `weights`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from .config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

TEMPLATE_BYTES_MAX = 1 << 20
END_NAMES = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "</s>",
)  # fmt: skip
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


@dataclass(frozen=True, slots=True)
class QuantBlocks:
    """A matrix as its file has it: `data` uint8 (out, in / 32, bytes a block), for kernels that multiply
    by it as it is.  A block is 32 weights of a row: float16 scale d, with q4_1 float16 minimum m after
    it, then 16 bytes, weight i in the low half of byte i, weight i + 16 in the high half.
    q4_0 (18 bytes): w = d · (nibble − 8).  q4_1 (20 bytes): w = d · nibble + m.  q8_0 (34 bytes): d,
    then 32 signed bytes, w = d · byte.  Source: ggml."""

    kind: Literal["q4_0", "q4_1", "q8_0"]
    data: Tensor


class ModelSource(Protocol):
    @property
    def config(self) -> ModelConfig: ...

    @property
    def tokenizer(self) -> TokenizerCard: ...

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of that Hugging Face name, floating point; q and k in the half-split rotary
        layout.  ModelError if it is absent, of another shape, or of a type we cannot read."""
        ...

    def blocks(self, name: str, shape: tuple[int, ...]) -> QuantBlocks | None:
        """What `read` gives (rows of q and k in the same order), still quantised; None where the file
        has it in any other type.  ModelError as `read`."""
        ...

    def rope_divisors(self) -> Tensor | None: ...

    def digest(self) -> str:
        """SHA-256 of the weights' content, hex."""
        ...
