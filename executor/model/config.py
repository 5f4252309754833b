"""What a decoder is made of: the one description of every family that this executor runs.  Every
number has a bound, so that a hostile file cannot ask for absurd memory.

Refuses to know: tensors, devices, files.  `hf_families` reads it from `config.json`, `gguf_families`
from GGUF metadata; what a family needs and this cannot say is refused there, by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from .errors import ModelError


class Family(StrEnum):
    """Architectures, by the names that their files have for them.  Llama 3 and SmolLM2 are llama."""

    LLAMA = "llama"
    SMOLLM3 = "smollm3"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    MISTRAL = "mistral"
    GEMMA3 = "gemma3"
    GRANITE = "granite"


class RopeKind(StrEnum):
    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    DIVISORS = "divisors"  # GGUF: one divisor a frequency, in the tensor `rope_freqs.weight`


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding.  `factor` stretches positions in every kind but the default; the
    `freq` factors are llama3's, the `beta`s, in turns over the original context, yarn's.  Cosines and
    sines, of queries and keys both, are multiplied by `attention_factor` (yarn's; else one)."""

    kind: RopeKind = RopeKind.DEFAULT
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # yarn's band to whole features
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.theta, self.factor, self.beta_fast, self.beta_slow, self.attention_factor)
        if not all(0 < number <= 1e12 for number in numbers):
            raise ModelError("rope: theta, factor and their like must be positive numbers")
        if self.kind is RopeKind.LLAMA3 and self.high_freq_factor == self.low_freq_factor:
            raise ModelError("rope's high_freq_factor equals its low_freq_factor; expected a band")
        if self.kind is RopeKind.YARN and self.theta <= 1:
            raise ModelError(f"rope's theta is {self.theta}; yarn wants more than one")

    @property
    def reach_tokens(self) -> int:
        """The context that yarn stretches the original one to; 0 where the file's own word stands."""
        stretched = self.original_context_tokens * self.factor
        return int(stretched) if self.kind is RopeKind.YARN else 0


class Activation(StrEnum):
    """Of the gate of the feed-forward block."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What differs between the layers of one model.  `rope` indexes the model's ropes, None: no
    rotation (NoPE).  `window`: how many keys a query sees, itself included; None: all before it."""

    rope: int | None = 0
    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama kind.  Norm weights are what the norm multiplies by: where a model
    stores w − 1 (Gemma), the loader adds the one.  `attention_scale` None: head_dim ** −0.5.
    `embedding_scale` is `rounded` to the dtype of the embedding where the model was trained so."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    ropes: tuple[Rope, ...]
    context_tokens: int
    tied: bool
    kinds: tuple[LayerKind, ...] = ()  # one a layer; empty: all alike
    activation: Activation = Activation.SILU
    attention_scale: float | None = None
    embedding_scale: float = 1.0
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    after_norms: bool = False
    family: Family = Family.LLAMA
    embedding_scale_rounded: bool = False
    logit_scale: float = 1.0

    def kind(self, layer: int) -> LayerKind:
        return self.kinds[layer] if self.kinds else LayerKind()

    @property
    def score_scale(self) -> float:
        """What a query times a key is multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def __post_init__(self) -> None:
        bounds = {
            "vocab_size": (self.vocab_size, 1 << 20),
            "hidden_size": (self.hidden_size, 1 << 16),
            "intermediate_size": (self.intermediate_size, 1 << 18),
            "layers": (self.layers, 512),
            "heads": (self.heads, 1024),
            "kv_heads": (self.kv_heads, 1024),
            "head_dim": (self.head_dim, 1024),
            "context_tokens": (self.context_tokens, 1 << 24),
        }
        for name, (value, most) in bounds.items():
            if not 1 <= value <= most:
                raise ModelError(f"the model's {name} is {value}; expected 1 to {most}")
        if self.heads % self.kv_heads:
            raise ModelError(
                f"{self.heads} query heads cannot be shared among {self.kv_heads} key-value heads"
            )
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary embedding wants an even number")
        if not 0 < self.norm_eps < 1:
            raise ModelError(f"the norm's epsilon is {self.norm_eps}; expected between 0 and 1")
        for name, scale in (
            ("attention scale", self.score_scale),
            ("embedding scale", self.embedding_scale),
            ("logit scale", self.logit_scale),
        ):
            if not 0 < scale <= 1e6:
                raise ModelError(f"the model's {name} is {scale}; expected a positive number")
        if self.kinds and len(self.kinds) != self.layers:
            raise ModelError(f"{len(self.kinds)} layers are described, but there are {self.layers}")
        for kind in self.kinds:
            assert kind.rope is None or kind.rope < len(self.ropes)
            if kind.window is not None and not 1 <= kind.window <= 1 << 24:
                raise ModelError(f"a sliding window of {kind.window} tokens; expected 1 or more")

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every weight by its Hugging Face name, with its shape: what a file must hold."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        linears = {
            "self_attn.q_proj": (q, hidden, self.qkv_bias),
            "self_attn.k_proj": (kv, hidden, self.qkv_bias),
            "self_attn.v_proj": (kv, hidden, self.qkv_bias),
            "self_attn.o_proj": (hidden, q, self.output_bias),
            "mlp.gate_proj": (inner, hidden, self.mlp_bias),
            "mlp.up_proj": (inner, hidden, self.mlp_bias),
            "mlp.down_proj": (hidden, inner, self.mlp_bias),
        }
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
        if self.after_norms:
            norms |= {"pre_feedforward_layernorm": hidden, "post_feedforward_layernorm": hidden}
        if self.qk_norm:
            norms |= {"self_attn.q_norm": self.head_dim, "self_attn.k_norm": self.head_dim}
        found: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.tied:
            found["lm_head.weight"] = (self.vocab_size, hidden)
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            found |= {f"{at}{name}.weight": (size,) for name, size in norms.items()}
            found |= {f"{at}{name}.weight": (rows, of) for name, (rows, of, _) in linears.items()}
            found |= {
                f"{at}{name}.bias": (rows,) for name, (rows, _, bias) in linears.items() if bias
            }
        return found

    @property
    def parameters(self) -> int:
        """Weights of the model, a tied table counted once."""
        return sum(math.prod(shape) for shape in self.tensors.values())

    def kv_bytes_per_token(self, itemsize: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize
