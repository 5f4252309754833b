from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from executor.contract import Logprob, TokenLogprobs
from gateway.text.reply import Piece, Reply
from gateway.text.stops import StopStrings
from gateway.text.tokenizer import Vocabulary
from tests.gateway.text_cards import EMOJI, STEADY, byte_level, card_of

VOCABULARY = Vocabulary.from_card(card_of(byte_level()))


def measured(ids: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(Logprob(token, -0.5), (Logprob(token, -0.5),)) for token in ids)


def run(reply: Reply, ids: Sequence[int], *, logprobs: bool) -> list[Piece]:
    pieces = []
    for token in ids:
        pieces.append(reply.push((token,), measured((token,)) if logprobs else ()))
        if pieces[-1].stopped:
            break
    return [*pieces, reply.finish()]


@STEADY
@given(
    text=st.text("hello wörld 👩‍🚀", max_size=30),
    stops=st.lists(st.text("helo wör👩", min_size=1, max_size=3), max_size=3),
)
def test_tokens_joined_are_the_text_and_bytes_its_utf8(text: str, stops: list[str]) -> None:
    ids = VOCABULARY.encode_content(text)
    plain = run(Reply(VOCABULARY, stops=stops), ids, logprobs=False)
    pieces = run(Reply(VOCABULARY, stops=stops, logprobs=True), ids, logprobs=True)
    shown = "".join(piece.text for piece in pieces)
    tokens = [token for piece in pieces for token in piece.tokens]
    assert shown == "".join(piece.text for piece in plain)
    assert "".join(token.text for token in tokens) == shown
    assert b"".join(token.raw for token in tokens) == shown.encode()
    watch = StopStrings(stops)
    cut, hit = watch.push(text)
    assert shown == cut + watch.flush()
    assert any(piece.stopped for piece in pieces) == hit


@STEADY
@given(ids=st.lists(st.integers(0, VOCABULARY.size - 1), max_size=20))
def test_any_ids_lose_nothing(ids: list[int]) -> None:
    pieces = run(Reply(VOCABULARY, logprobs=True), ids, logprobs=True)
    shown = "".join(piece.text for piece in pieces)
    assert shown == VOCABULARY.decode(ids)
    assert "".join(token.text for piece in pieces for token in piece.tokens) == shown
    assert all(piece.text or not piece.tokens for piece in pieces)


def test_tokens_of_a_character_come_with_it() -> None:
    ids = VOCABULARY.encode_content("👩")
    pieces = run(Reply(VOCABULARY, logprobs=True), ids, logprobs=True)
    assert [piece.text for piece in pieces] == [*[""] * (len(ids) - 1), "👩", ""]
    assert [len(piece.tokens) for piece in pieces] == [*[0] * (len(ids) - 1), len(ids), 0]


def test_stop_ids_are_not_printed_even_where_special_tokens_are() -> None:
    hello = VOCABULARY.encode_content("hello")
    reply = Reply(VOCABULARY, stop_ids=frozenset({2}), skip_special_tokens=False)
    assert reply.push([*hello, 1, 2]).text == "hello<|im_start|>"
    measuring = Reply(VOCABULARY, stop_ids=frozenset({2}), logprobs=True)
    piece = measuring.push([*hello, 2], measured([*hello, 2]))
    assert piece.text == "hello"
    assert len(piece.tokens) == len(hello)


def test_after_a_stop_there_is_no_more() -> None:
    reply = Reply(VOCABULARY, stops=["lo"])
    assert reply.push(VOCABULARY.encode_content("hello")) == Piece("hel", stopped=True)
    assert reply.push(VOCABULARY.encode_content("more")) == Piece("", stopped=True)
    assert reply.finish() == Piece("", stopped=True)


def test_an_unfinished_stop_is_given_out_at_the_end() -> None:
    reply = Reply(VOCABULARY, stops=["lower"])
    assert reply.push(VOCABULARY.encode_content("hello")) == Piece("hel")
    assert reply.finish() == Piece("lo")


def test_a_token_across_the_cut_is_cut() -> None:
    ids = VOCABULARY.encode_content("hello")
    reply = Reply(VOCABULARY, stops=["o"], logprobs=True)
    piece = reply.push(ids, measured(ids))
    assert piece.text == "hell"
    assert "".join(token.text for token in piece.tokens) == "hell"


def test_a_character_left_incomplete_shows_at_the_end() -> None:
    ids = VOCABULARY.encode_content(f"a{EMOJI}")[:-1]
    reply = Reply(VOCABULARY)
    pieces = run(reply, ids, logprobs=False)
    assert pieces[-1].text == "�"
