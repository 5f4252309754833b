from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.detokenize import Detokenizer
from gateway.text.tokenizer import Vocabulary
from tests.gateway.text_cards import EMOJI, STEADY, byte_level, card_of, sentencepiece

BYTES = Vocabulary.from_card(card_of(byte_level()))
PIECES = Vocabulary.from_card(card_of(sentencepiece()))


def feed(vocabulary: Vocabulary, parts: Sequence[Sequence[int]], *, skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(vocabulary, skip_special_tokens=skip)
    return [*(detokenizer.push(part) for part in parts), detokenizer.finish()]


@STEADY
@given(ids=st.lists(st.integers(0, BYTES.size - 1)), data=st.data(), skip=st.booleans())
def test_any_split_equals_decoding_at_once(ids: list[int], data: st.DataObject, skip: bool) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    edges = [0, *cuts, len(ids)]
    parts = [ids[a:b] for a, b in itertools.pairwise(edges)]
    assert "".join(feed(BYTES, parts, skip=skip)) == BYTES.decode(ids, skip_special_tokens=skip)


@STEADY
@given(text=st.text())
def test_whole_characters_never_show_broken(text: str) -> None:
    text = text.replace("�", "").replace("▁", "")
    deltas = feed(PIECES, [[token] for token in PIECES.encode_content(text)])
    assert "".join(deltas) == text
    assert "�" not in "".join(deltas)


def test_an_emoji_is_one_delta_a_character() -> None:
    ids = BYTES.encode_content(EMOJI)
    assert len(ids) > 3
    deltas = [delta for delta in feed(BYTES, [[token] for token in ids]) if delta]
    assert deltas == list(EMOJI)


def test_an_incomplete_character_shows_at_the_very_end() -> None:
    ids = BYTES.encode_content("a👩")[:-1]
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.push(ids) == "a"
    assert detokenizer.pending
    assert detokenizer.finish() == "�"
    assert not detokenizer.pending


def test_the_first_space_of_an_answer_stays() -> None:
    ids = PIECES.encode_content("hello", start=True)
    assert "".join(feed(PIECES, [ids])) == " hello"


def test_special_tokens_print_only_when_asked() -> None:
    ids = [*BYTES.encode_content("hello"), 2]
    assert "".join(feed(BYTES, [ids])) == "hello"
    assert "".join(feed(BYTES, [ids], skip=False)) == "hello<|im_end|>"


def test_an_id_outside_the_vocabulary_is_our_mistake() -> None:
    with pytest.raises(IndexError):
        Detokenizer(BYTES).push([BYTES.size])
