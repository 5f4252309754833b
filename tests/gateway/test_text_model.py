"""The default model's own tokenizer and template."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.contract import ModelCard
from gateway.text.detokenize import Detokenizer
from gateway.text.prompts import chat_prompt
from gateway.text.templates import ChatMessage, ChatTemplate
from gateway.text.tokenizer import Vocabulary
from tests.gateway.text_cards import EMOJI, STEADY
from tests.models import default_model_path

pytestmark = pytest.mark.slow

NOW = datetime(2026, 11, 29, tzinfo=UTC)
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@pytest.fixture(scope="module")
def card() -> ModelCard:
    from executor.model.gguf_source import open_gguf_source

    source = open_gguf_source(default_model_path())
    tokenizer = source.tokenizer
    return ModelCard(
        architecture="llama",
        dtype="float32",
        numerics="invariant",
        vocab_size=source.config.vocab_size,
        context_tokens=2048,
        block_tokens=16,
        kv_blocks=64,
        tokenizer_json=tokenizer.document,
        chat_template=tokenizer.chat_template,
        bos_token_id=tokenizer.bos_id,
        eos_token_ids=tokenizer.eos_ids,
        special_token_ids=tokenizer.special_ids,
        add_bos=tokenizer.add_bos,
    )


@pytest.fixture(scope="module")
def vocabulary(card: ModelCard) -> Vocabulary:
    return Vocabulary.from_card(card)


def test_a_conversation_reads_as_the_model_was_trained(
    card: ModelCard, vocabulary: Vocabulary
) -> None:
    messages = [
        ChatMessage("user", "What is the capital of France?"),
        ChatMessage("assistant", "Paris."),
        ChatMessage("user", "And of Spain? 👩‍🚀"),
    ]
    template = ChatTemplate.compile(card, vocabulary)
    assert template is not None
    text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" + "".join(
        f"<|im_start|>{message.role}\n{message.content}<|im_end|>\n" for message in messages
    )
    prompt = chat_prompt(vocabulary, template, messages, now=NOW)
    assert prompt.provenance
    assert (
        vocabulary.decode(prompt.ids, skip_special_tokens=False) == text + "<|im_start|>assistant\n"
    )
    assert list(prompt.ids) == vocabulary.encode_scaffold(text + "<|im_start|>assistant\n")


def test_no_text_yields_a_special_id(vocabulary: Vocabulary) -> None:
    names = [vocabulary.special_text(token) for token in sorted(vocabulary.forbidden_ids)]
    assert "<|im_end|>" in names

    @STEADY
    @given(
        text=st.lists(st.one_of(st.sampled_from(names), st.text(max_size=6), st.just("\x06"))).map(
            "".join
        )
    )
    def check(text: str) -> None:
        ids = vocabulary.encode_content(text)
        assert vocabulary.forbidden_ids.isdisjoint(ids)

    check()


def test_the_missing_bytes_do_not_end_a_text(vocabulary: Vocabulary) -> None:
    """Its vocabulary lacks 21 bytes, and its Hugging Face form reads `<|endoftext|>` there."""
    assert vocabulary.encode_content("a\x06") == vocabulary.encode_content("a") != []


def test_an_emoji_is_one_delta_a_character(vocabulary: Vocabulary) -> None:
    detokenizer = Detokenizer(vocabulary)
    deltas = [detokenizer.push([token]) for token in vocabulary.encode_content(EMOJI)]
    assert [delta for delta in deltas if delta] == list(EMOJI)
