"""What is said and called, with log-probabilities: joined, the tokens are the text, however it all arrives."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.contract import Emitted, Logprob, TokenLogprobs
from gateway.api.answers import Head
from gateway.api.sse import ChatStream
from gateway.telling import Voice
from gateway.text.reply import Piece, Reply, ShownToken
from gateway.text.stops import Automaton
from gateway.text.tokenizer import Vocabulary
from gateway.tools.calls import CallPart
from gateway.tools.hearing import Heard, Hearing
from gateway.tools.reader import Reader, Said
from tests.gateway.text_cards import STEADY, byte_level, card_of
from tests.gateway.tools.cards import model
from tests.gateway.tools.test_reader import CALL, HERMES, NAMES, hostile

VOCABULARY = Vocabulary.from_card(card_of(byte_level()))


def certain(token: int) -> TokenLogprobs:
    return TokenLogprobs(Logprob(token, -0.5), ())


def hear(
    tokens: Sequence[int], pieces: Sequence[int], *, logprobs: bool, stops: Sequence[str] = ()
) -> list[Heard]:
    """`pieces`: how many tokens arrive together."""
    reply = Reply(VOCABULARY, stops=Automaton(stops), logprobs=logprobs)
    hearing = Hearing(Reader(HERMES, NAMES, str), logprobs=logprobs)
    out: list[Heard] = []
    at = 0
    for size in [*pieces, *([1] * len(tokens))]:
        some = tokens[at : at + size]
        at += size
        piece = reply.push(some, [certain(token) for token in some] if logprobs else ())
        out += hearing.push(piece)
        if piece.stopped:
            break
    else:
        out += hearing.push(reply.finish())
    return out + hearing.finish()


def joined(heard: Sequence[Heard]) -> tuple[str, list[tuple[int, str | None, str]]]:
    calls: list[tuple[int, str | None, str]] = []
    for part in (part for each in heard for part in each.calls):
        if part.id is None:
            index, name, arguments = calls[-1]
            calls[-1] = (index, name, arguments + part.arguments)
        else:
            calls.append((part.index, part.name, part.arguments))
    return "".join(each.text for each in heard), calls


@STEADY
@given(
    st.lists(
        st.one_of(hostile, st.just(f"<tool_call>{CALL}</tool_call>"), st.text(max_size=4)),
        max_size=4,
    ).map("".join),
    st.lists(st.integers(1, 9), max_size=9),
    st.sampled_from([(), ("x",), ("}",), ("<tool",), ("é", "</tool_call>")]),
)
def test_tokens_are_those_of_the_text_and_change_nothing_of_it(
    text: str, pieces: list[int], stops: tuple[str, ...]
) -> None:
    tokens = VOCABULARY.encode_content(text)
    plain = joined(hear(tokens, (), logprobs=False, stops=stops))
    assert joined(hear(tokens, pieces, logprobs=False, stops=stops)) == plain
    for sizes in ((), pieces, (len(tokens) or 1,)):
        heard = hear(tokens, sizes, logprobs=True, stops=stops)
        assert joined(heard) == plain
        shown = [token for each in heard for token in each.shown]
        assert "".join(token.text for token in shown) == plain[0]
        assert all(each.text or not each.shown for each in heard)
        if "\ufffd" not in plain[0]:
            assert b"".join(token.raw for token in shown) == plain[0].encode()


def test_a_call_waits_for_no_token_of_it() -> None:
    """Log-probabilities hold text back to the end of its token, and nothing longer."""
    tokens = VOCABULARY.encode_content(f"hello <tool_call>{CALL}</tool_call> world")
    first = joined(hear(tokens[:-2], (), logprobs=True))
    assert first[0].startswith("hello")
    assert first[1] == [(0, "f", '{"a": 1}')]


@pytest.mark.parametrize("family", ("llama3_json", "mistral", "named"))
def test_control_tokens_that_open_calls_are_read_and_never_shown(family: str) -> None:
    vocabulary, _, style = model(family)
    opens = vocabulary.special_id(style.plain.opens)
    assert opens is not None
    between = vocabulary.special_id("[ARGS]")
    named = (
        [*b"f", between, *b"{}"] if between is not None else list(b'{"name": "f", "arguments": {}}')
    )
    for skip in (True, False):
        for tokens, text, calls in (
            ([opens, *named], "", ["f"]),
            (
                [opens, *b"brave_search()"],
                "brave_search()" if skip else style.plain.opens + "brave_search()",
                [],
            ),
            ([*b"So. ", opens, *named], "So.", ["f"]),
        ):
            reply = Reply(
                vocabulary, printed=style.printed if skip else None, skip_special_tokens=skip
            )
            reader = Reader(style.spelling if skip else style.plain, NAMES, str)
            hearing = Hearing(reader)
            heard = [each for token in tokens for each in hearing.push(reply.push((token,)))]
            heard += hearing.push(reply.finish()) + hearing.finish()
            shown, found = joined(heard)
            assert (shown, [name for _, name, _ in found]) == (text, calls)


def test_a_voice_ends_with_the_only_call_that_may_be_made() -> None:
    tokens = VOCABULARY.encode_content(f"<tool_call>{CALL}</tool_call> and more")

    reader = Reader(HERMES, NAMES, str, parallel=False)
    voice = Voice(0, Reply(VOCABULARY), by_token=True, hearing=Hearing(reader))
    deltas = voice.hear(Emitted(request=1, tokens=tuple(tokens), logprobs=()))
    assert voice.stopped
    assert voice.reason == "tool_calls"
    said = b"".join(map(VOCABULARY.token_bytes, tokens[: voice.tokens])).decode()
    assert said.removeprefix("<tool_call>") in {CALL[:-1], CALL, CALL + "<"}
    assert [part.arguments for delta in deltas for part in delta.calls if part.id is None][
        -1
    ].endswith("}")


def test_the_only_call_is_whole_where_its_last_token_holds_more_than_its_end() -> None:
    """With log-probabilities what stands in an undecided token is held back, and with the call all is decided."""

    class Told(Reply):
        def push(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> Piece:
            text = said[tokens[0]]
            return Piece(text, (ShownToken(text, text.encode(), Logprob(1, -0.5), ()),))

    said = ["<tool_call>", '{"name": "f", "arguments": ', '{"a": 1', "}}", "\n"]
    for logprobs in (False, True):
        hearing = Hearing(Reader(HERMES, NAMES, str, parallel=False), logprobs=logprobs)
        voice = Voice(0, Told(VOCABULARY), by_token=True, hearing=hearing)
        deltas = voice.hear(Emitted(request=1, tokens=tuple(range(len(said))), logprobs=()))
        assert voice.stopped
        assert voice.reason == "tool_calls"
        assert joined([Heard(each.text, (), each.calls) for each in deltas]) == (
            "",
            [(0, "f", '{"a": 1}')],
        )


def test_a_token_across_the_end_of_text_is_cut() -> None:
    def shown(text: str) -> ShownToken:
        return ShownToken(text, text.encode(), Logprob(1, -0.5), ())

    tokens = [shown(text) for text in ("Hé", "o<tool", "_call>", CALL, "</tool_call>ß", "!")]
    hearing = Hearing(Reader(HERMES, NAMES, str), logprobs=True)
    heard = [each for token in tokens for each in hearing.push(Piece(token.text, (token,)))]
    heard += hearing.finish()
    assert [(token.text, token.raw) for each in heard for token in each.shown] == [
        ("Hé", "Hé".encode()), ("o", b"o"), ("ß", "ß".encode()), ("!", b"!"),
    ]  # fmt: skip
    assert joined(heard) == ("Héoß!", [(0, "f", '{"a": 1}')])


def test_a_voice_that_hears_much_at_once_keeps_the_order_of_text_and_calls() -> None:
    call = f"<tool_call>{CALL}</tool_call>"
    tokens = VOCABULARY.encode_content(f"one {call} two {call} three")
    voice = Voice(
        0,
        Reply(VOCABULARY, stops=["never"]),
        by_token=True,
        hearing=Hearing(Reader(HERMES, NAMES, str)),
    )
    deltas = voice.hear(Emitted(request=1, tokens=tuple(tokens), logprobs=())) + voice.finish()
    said = [(delta.text, [part.index for part in delta.calls if part.id]) for delta in deltas]
    assert said[:3] == [("one", [0]), ("two", [1]), ("three", [])] or said[2][0].startswith("th")
    assert sum(delta.tokens for delta in deltas) == voice.tokens == len(tokens)


def test_each_part_of_a_call_is_a_chunk_of_its_own() -> None:
    """openai-python joins the parts of one index over chunks, and takes two in one for two calls."""
    stream = ChatStream(Head("id", 1, "m"), VOCABULARY)
    parts = (CallPart(0, id="a", name="f"), CallPart(0, "{}"), CallPart(1, id="b", name="f"))
    events = stream.delta(0, "so", calls=parts).decode().split("\n\n")[:-1]
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    assert deltas == [
        {"content": "so"},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "f", "arguments": ""}}]},
    ]  # fmt: skip


def test_said_keeps_its_place() -> None:
    assert Said(3, ["a", "b"]).end == 5
