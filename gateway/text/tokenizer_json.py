"""What Lockgate changes in, and reads out of, a `tokenizer.json` document.  Pure.

`without` makes tokens unreachable while every id keeps its place (removing an added token would
shift the ids behind it).  `unprefixed` turns off the space that SentencePiece models put before a
text, for pieces in the middle of one.  `decoder_of` says how a vocabulary entry becomes bytes.

Refuses to know: any tokenizer object, any text of a client.
Source: the JSON format of the `tokenizers` library, 0.23.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Document = dict[str, Any]
ToBytes = Callable[[str], bytes]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenizerFault(ValueError):
    """The model's tokenizer cannot be served: for the operator, when the model is loaded."""


def without(document: Document, forbidden: frozenset[int], mint: Callable[[], str]) -> Document:
    """A copy in which no text reaches a `forbidden` id: their names become `mint()`, random text.
    An `unk` token keeps its id under its new name, so that unknown characters still have one."""
    model = dict(document["model"])
    renamed: dict[str, str] = {}
    added = [dict(token) for token in document.get("added_tokens") or []]
    for token in added:
        if token["id"] in forbidden:
            renamed[token["content"]] = token["content"] = mint()
            token["normalized"] = False
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        names = {text for text, token in vocab.items() if token in forbidden}
        renamed |= {text: mint() for text in names if text not in renamed}
        model["vocab"] = {renamed.get(text, text): token for text, token in vocab.items()}
    else:  # Unigram: a list of [piece, score]; the id is the place
        pieces = {piece for place, (piece, _) in enumerate(vocab) if place in forbidden}
        renamed |= {piece: mint() for piece in pieces if piece not in renamed}
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in vocab]
    if model.get("merges"):
        model["merges"] = [m for m in model["merges"] if renamed.keys().isdisjoint(_parts(m))]
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
    return {**document, "model": model, "added_tokens": added}


def _parts(merge: str | list[str]) -> tuple[str, str, str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right, left + right


def unprefixed(document: Document) -> Document:
    """A copy that puts no space in front of a text."""
    return {
        **document,
        "normalizer": _unprefixed(document.get("normalizer")),
        "pre_tokenizer": _unprefixed(document.get("pre_tokenizer")),
    }


def _unprefixed(step: Any) -> Any:
    if not isinstance(step, dict):
        return step
    match step.get("type"):
        case "Sequence":
            name = "normalizers" if "normalizers" in step else "pretokenizers"
            steps = [_unprefixed(inner) for inner in step[name]]
            return {**step, name: [inner for inner in steps if inner is not None]}
        case "Prepend":
            return None
        case "Metaspace":
            return {"type": "Metaspace", "replacement": step["replacement"]} | {
                "prepend_scheme": "never",
                "split": step.get("split", True),
            }
        case "ByteLevel":
            return {**step, "add_prefix_space": False}
    return step


def decoder_of(step: Any) -> tuple[bool, ToBytes]:
    """Whether a whole text loses its first space, and how one vocabulary entry becomes bytes.
    Raises TokenizerFault for a decoder in which a token's bytes depend on its neighbours."""
    steps = step.get("decoders", []) if _type(step) == "Sequence" else [step]
    strips = False
    fused = False
    replacements: list[tuple[str, str]] = []
    bytes_fall_back = False
    for inner in steps:
        match _type(inner):
            case "ByteLevel" if len(steps) == 1:
                return False, _byte_level
            case "Replace" if "String" in inner["pattern"]:
                replacements.append((inner["pattern"]["String"], inner["content"]))
            case "ByteFallback":
                bytes_fall_back = True
            case "Fuse":
                fused = True
            case "Strip" if fused and (inner["content"], inner["start"], inner["stop"]) == (
                " ",
                1,
                0,
            ):
                strips = True
            case "Metaspace":
                replacements.append((inner["replacement"], " "))
                strips = inner.get("prepend_scheme", "always") != "never"
            case other:
                raise TokenizerFault(
                    f"The tokenizer's decoder step {other!r} is not supported. Supported are "
                    "ByteLevel, Metaspace, and the SentencePiece sequence of Replace, ByteFallback, "
                    "Fuse and Strip."
                )

    def to_bytes(text: str) -> bytes:
        for old, new in replacements:
            text = text.replace(old, new)
        if bytes_fall_back and (match := _BYTE.fullmatch(text)):
            return bytes([int(match[1], 16)])
        return text.encode()

    return strips, to_bytes


def _type(step: Any) -> str | None:
    return step.get("type") if isinstance(step, dict) else None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's bijection: printable Latin-1 stands for itself, the rest for U+0100 onwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(hidden)
    }


_ALPHABET = _byte_alphabet()


def _byte_level(text: str) -> bytes:
    try:
        return bytes(_ALPHABET[char] for char in text)
    except KeyError:  # an entry outside the alphabet is itself, as in the library's decoder
        return text.encode()
