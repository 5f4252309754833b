"""Published configurations of every family, read to what they are known to be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from executor.model.config import Activation, Family, LayerKind, ModelConfig, Rope, RopeKind
from executor.model.errors import ModelError
from executor.model.gguf_families import from_gguf
from executor.model.hf_families import from_hf

LLAMA32_1B = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "tie_word_embeddings": True, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
    "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "pretraining_tp": 1,
}  # fmt: skip
SMOLLM2_135M = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 100000,
    "rope_scaling": None, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SMOLLM3_3B = {
    "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256,
    "max_position_embeddings": 65536, "rms_norm_eps": 1e-06, "rope_theta": 5000000.0,
    "no_rope_layers": [1, 1, 1, 0] * 9, "no_rope_layer_interval": 4, "use_sliding_window": False,
    "sliding_window": None, "layer_types": ["full_attention"] * 36, "bos_token_id": None,
    "eos_token_id": 128012, "max_window_layers": 28, "mlp_bias": False, "attention_bias": False,
}  # fmt: skip
QWEN25_05B = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "max_window_layers": 21, "use_sliding_window": False,
    "tie_word_embeddings": True, "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
QWEN3_06B = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
    "rope_scaling": None, "sliding_window": None, "max_window_layers": 28,
    "use_sliding_window": False, "tie_word_embeddings": True, "attention_bias": False,
    "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 32000, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GEMMA3_1B = {
    "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
    "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "vocab_size": 262144, "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": None,
    "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6,
    "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": None,
    "final_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": [1, 106],
}  # fmt: skip
GEMMA3_4B = {
    "model_type": "gemma3", "eos_token_id": [1, 106], "boi_token_index": 255999,
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"model_type": "siglip_vision_model"},
}  # fmt: skip


def read(document: dict[str, Any], **changes: Any) -> ModelConfig:
    return from_hf(msgspec.json.encode(document | changes)).config


@pytest.mark.parametrize(
    ("document", "family", "parameters"),
    (
        (LLAMA32_1B, Family.LLAMA, 1_235_814_400),
        (SMOLLM2_135M, Family.LLAMA, 134_515_008),
        (SMOLLM3_3B, Family.SMOLLM3, 3_075_098_624),
        (QWEN25_05B, Family.QWEN2, 494_032_768),
        (QWEN3_06B, Family.QWEN3, 596_049_920),
        (MISTRAL_7B, Family.MISTRAL, 7_241_732_096),
        (GEMMA3_1B, Family.GEMMA3, 999_885_952),
        (GEMMA3_4B, Family.GEMMA3, 3_880_263_168),
    ),
)
def test_a_published_model_has_as_many_weights_as_its_card_says(
    document: dict[str, Any], family: Family, parameters: int
) -> None:
    config = read(document)
    assert (config.family, config.parameters) == (family, parameters)


def test_what_makes_each_family_itself() -> None:
    llama = read(LLAMA32_1B)
    assert (llama.ropes[0].kind, llama.ropes[0].factor) == (RopeKind.LLAMA3, 32.0)
    assert [read(SMOLLM3_3B).kind(at).rope for at in range(8)] == [0, 0, 0, None] * 2
    assert read(QWEN25_05B).qkv_bias
    assert not read(QWEN25_05B).output_bias
    assert read(QWEN3_06B).qk_norm
    assert read(MISTRAL_7B).kinds == (LayerKind(window=4096),) * 32
    gemma = read(GEMMA3_4B)
    assert (gemma.heads, gemma.kv_heads, gemma.head_dim, gemma.vocab_size) == (8, 4, 256, 262_208)
    assert gemma.ropes == (Rope(RopeKind.LINEAR, 1e6, 8.0, original_context_tokens=131_072),
                           Rope(theta=1e4, original_context_tokens=131_072))  # fmt: skip
    assert [gemma.kind(at) for at in (4, 5, 6)] == [
        LayerKind(1, 1024), LayerKind(0, None), LayerKind(1, 1024)
    ]  # fmt: skip
    assert (gemma.activation, gemma.score_scale) == (Activation.GELU_TANH, 1 / 16)
    assert (gemma.embedding_scale, gemma.after_norms) == (2560**0.5, True)
    assert from_hf(msgspec.json.encode(GEMMA3_4B)).eos == (1, 106)
    assert from_hf(msgspec.json.encode(GEMMA3_4B)).norm_offset == 1.0


def test_what_a_file_leaves_out_is_as_its_family_has_it() -> None:
    bare = {name: value for name, value in MISTRAL_7B.items() if name != "sliding_window"}
    assert read(bare).kind(0).window == 4096
    assert read(MISTRAL_7B, sliding_window=None).kinds == ()
    assert read(QWEN25_05B, use_sliding_window=True).kind(21).window == 32768
    assert read(QWEN25_05B, use_sliding_window=True).kind(20).window is None
    short = {name: value for name, value in SMOLLM3_3B.items() if name != "no_rope_layers"}
    assert read(short, layer_types=None).kinds == read(SMOLLM3_3B).kinds


def test_yarn_reaches_as_far_as_it_stretches() -> None:
    settings = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = read(QWEN25_05B, rope_scaling=settings)
    assert config.context_tokens == 131_072
    assert config.ropes[0].attention_factor == pytest.approx(1.1386294)


def test_dynamic_is_the_default_up_to_the_context_and_no_further() -> None:
    config = read(SMOLLM2_135M, rope_scaling={"type": "dynamic", "factor": 4.0})
    assert config.ropes == read(SMOLLM2_135M).ropes
    assert config.context_tokens == 8192


@pytest.mark.parametrize(
    ("document", "changes", "says"),
    (
        (GEMMA3_1B, {"final_logit_softcapping": 30.0}, "soft-capped"),
        (GEMMA3_1B, {"use_bidirectional_attention": True}, "bidirectional"),
        (GEMMA3_1B, {"hidden_activation": "gelu"}, "activation 'gelu'"),
        (GEMMA3_1B, {"sliding_window": None}, "without a sliding_window"),
        (GEMMA3_1B, {"layer_types": ["full_attention"]}, "every layer"),
        (GEMMA3_1B, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        (GEMMA3_1B, {"rope_parameters": {"full_attention": [1]}}, "full and sliding"),
        (QWEN3_06B, {"use_sliding_window": True, "sliding_window": 8,
                     "layer_types": ["chunked_attention"] * 28}, "'chunked_attention'"),
        (SMOLLM3_3B, {"no_rope_layers": [1, 0]}, "every layer"),
        (LLAMA32_1B, {"rope_scaling": {"rope_type": "linear"}}, "without its factor"),
        (LLAMA32_1B, {"rope_scaling": {"rope_type": "yarn", "factor": 1e9}}, "context_tokens"),
        (LLAMA32_1B, {"partial_rotary_factor": 0.5}, "partial"),
        (LLAMA32_1B, {"rope_scaling": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4.0}},
         "expected a band"),
        (MISTRAL_7B, {"sliding_window": 0}, "sliding_window"),
        (MISTRAL_7B, {"model_type": "mixtral"}, "runs llama, smollm3, qwen2"),
        (MISTRAL_7B, {"model_type": ["llama"]}, "is not supported"),
    ),
)  # fmt: skip
def test_what_would_change_the_answer_is_refused(
    document: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        read(document, **changes)


GGUF_GEMMA = {
    "general.architecture": "gemma3", "gemma3.block_count": 62, "gemma3.embedding_length": 5376,
    "gemma3.feed_forward_length": 21504, "gemma3.attention.head_count": 32,
    "gemma3.attention.head_count_kv": 16, "gemma3.attention.key_length": 128,
    "gemma3.attention.value_length": 128, "gemma3.attention.sliding_window": 1024,
    "gemma3.context_length": 131072, "gemma3.rope.freq_base": 1e6,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0,
}  # fmt: skip


def test_what_gguf_has_no_key_for_is_as_its_makers_have_it() -> None:
    config = from_gguf(GGUF_GEMMA, 262_144, ()).config
    assert config.attention_scale == pytest.approx(168**-0.5)  # of the 27B, not of its head_dim
    assert [config.kind(at).window for at in (4, 5, 6)] == [1024, None, 1024]
    assert [rope.factor for rope in config.ropes] == [8.0, 1.0]
    smol = {key.replace("gemma3", "smollm3"): value for key, value in GGUF_GEMMA.items()}
    smol |= {"general.architecture": "smollm3", "smollm3.rope.scaling.type": "none"}
    assert [from_gguf(smol, 10, ()).config.kind(at).rope for at in range(4)] == [0, 0, 0, None]


def test_gguf_has_a_factor_beside_yarns_own() -> None:
    scaling = {"gemma3.rope.scaling.type": "yarn", "gemma3.rope.scaling.attn_factor": 0.5}
    rope = from_gguf(GGUF_GEMMA | scaling, 10, ()).config.ropes[0]
    assert rope.kind is RopeKind.YARN
    assert rope.attention_factor == pytest.approx(0.5 * 1.2079442)


@pytest.mark.parametrize(
    ("changes", "says"),
    (
        ({"gemma3.final_logit_softcapping": 30.0}, "soft-capped"),
        ({"gemma3.attention.sliding_window_pattern": [True]}, "every layer"),
        ({"gemma3.attention.sliding_window_pattern": 0}, "expected 1 or more"),
        ({"gemma3.attention.sliding_window": 1 << 40}, "sliding window of"),
        ({"gemma3.attention.scale": float("nan")}, "attention.scale"),
        ({"gemma3.rope.freq_base_swa": float("inf")}, "freq_base_swa"),
        ({"gemma3.rope.scaling.type": "yarn", "gemma3.rope.scaling.yarn_attn_factor": 0.5},
         "yarn_attn_factor"),
        ({"gemma3.rope.scaling.type": ["yarn"]}, "rope kind"),
    ),
)  # fmt: skip
def test_gguf_metadata_that_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        from_gguf(GGUF_GEMMA | changes, 262_144, ())
