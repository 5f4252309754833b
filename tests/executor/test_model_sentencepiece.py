"""SentencePiece vocabularies from GGUF metadata, against its own rule written out: of all neighbours
whose join is a piece, merge the best, the leftmost of equals."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import Tokenizer

from executor.model.errors import ModelError
from executor.model.gguf_tokenizer import tokenizer_card

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = list("▁abcde\n水")
RUNS = ["▁▁", "▁▁▁▁", "▁▁▁"]  # of one score, like Llama's
WORDS = ["ab", "▁ab", "cd", "abc", "▁abcd", "de", "▁a", "ba", "ee", "eee", "eeee", "水水", "▁水"]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *LETTERS, *RUNS, *WORDS, "<end_of_turn>", "  \n"]
KINDS = [2, 3, 3, *[6] * 256, *[1] * (len(LETTERS) + len(RUNS) + len(WORDS)), 3, 4]
SCORES = [
    0.0, 0.0, 0.0, *[0.0] * 256, *[-1e9] * (len(LETTERS) + len(RUNS)),
    *[-float(at) for at in range(len(WORDS))], 0.0, 0.0,
]  # fmt: skip
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.scores": SCORES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
SCORE_OF = {token: SCORES[at] for at, token in enumerate(TOKENS) if KINDS[at] == 1}


def by_its_own_rule(text: str) -> list[int]:
    symbols = list(text.replace(" ", "▁"))
    while True:
        joins = [
            (-SCORE_OF[left + right], at)
            for at, (left, right) in enumerate(pairwise(symbols))
            if left + right in SCORE_OF
        ]
        if not joins:
            break
        _, at = min(joins)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    found: list[int] = []
    for symbol in symbols:
        known = [symbol] if symbol in SCORE_OF else [f"<0x{byte:02X}>" for byte in symbol.encode()]
        found.extend(TOKENS.index(token) for token in known)
    return found


@pytest.mark.parametrize("prefixed", (True, False))
def test_text_is_cut_as_sentencepiece_cuts_it(prefixed: bool) -> None:
    card = tokenizer_card(METADATA | {"tokenizer.ggml.add_space_prefix": prefixed})
    tokenizer = Tokenizer.from_buffer(card.document)
    chance = random.Random(3)
    for alphabet in ("ab ", "abcde 水é", " ", "e ", "cde\n"):
        for _ in range(60):
            text = "".join(chance.choice(alphabet) for _ in range(chance.randint(1, 30)))
            if "  \n" in text:
                continue
            expected = by_its_own_rule((" " if prefixed else "") + text)
            assert tokenizer.encode(text).ids == expected, text
            assert tokenizer.decode(expected) == text


def test_control_and_user_defined_pieces_stay_whole() -> None:
    card = tokenizer_card(METADATA | {"tokenizer.ggml.add_space_prefix": False})
    ids = Tokenizer.from_buffer(card.document).encode("ab  \n<end_of_turn>").ids
    assert [TOKENS[at] for at in ids] == ["ab", "  \n", "<end_of_turn>"]
    assert TOKENS.index("<end_of_turn>") in card.eos_ids
    assert card.special_ids == (1, 2, TOKENS.index("<end_of_turn>"))


def test_a_bos_is_added_unless_the_file_says_no() -> None:
    assert tokenizer_card(METADATA).add_bos
    assert not tokenizer_card(METADATA | {"tokenizer.ggml.add_bos_token": False}).add_bos


def changed(token: str, *, score: float | None = None, kind: int | None = None) -> dict[str, Any]:
    at = TOKENS.index(token)
    scores, kinds = list(SCORES), list(KINDS)
    scores[at] = SCORES[at] if score is None else score
    kinds[at] = KINDS[at] if kind is None else kind
    return {"tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": kinds}


@pytest.mark.parametrize(
    ("changes", "says"),
    (
        (changed("abc", score=-2.0), "'cd' and 'abc' have one score"),
        (changed("de", score=-1e9), "have one score"),
        (changed("c", kind=5), "holds a character that is none"),
        (changed("▁▁▁▁", kind=5), "made but unused"),
        (changed("<0x41>", kind=1), "one token for each byte"),
        (changed("<s>", kind=2), "2 unknown tokens"),
        (changed("ab", score=float("nan")), "scores does not fit"),
        ({"tokenizer.ggml.scores": [0.0]}, "scores does not fit"),
        ({"tokenizer.ggml.scores": None}, "scores does not fit"),
        ({"tokenizer.ggml.remove_extra_whitespaces": True}, "white space"),
        ({"tokenizer.ggml.precompiled_charsmap": [1]}, "rewrites characters"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer 't5'"),
        ({"tokenizer.ggml.model": ["llama"]}, "is not supported"),
    ),
)
def test_a_vocabulary_that_merges_cannot_say_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        tokenizer_card(METADATA | changes)
