"""The same bytes by another hand: a few lines after the README's tables, sharing nothing with the
product.  `python -m tests.policies.scope.independent` prints `vectors.json` anew; a change of it means
that every cache key changes, which is a new version byte, never an edit.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).with_name("vectors.json")


def part(letter: str, body: bytes) -> bytes:
    return letter.encode() + len(body).to_bytes(4, "big") + body


def encode(value: Any) -> bytes:
    """Of JSON-like values: lists are tuples, {"set": […]} a set, {"hex": …} bytes, {"ids": […]} ids."""
    if value is None:
        return part("0", b"")
    if value is True or value is False:
        return part("?", bytes([value]))
    if isinstance(value, int):
        size = 1
        while not -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
            size += 1
        return part("i", value.to_bytes(size, "big", signed=True))
    if isinstance(value, str):
        return part("s", value.encode("utf-8"))
    if isinstance(value, list):
        return part("(", b"".join(map(encode, value)))
    ((kind, inner),) = value.items()
    if kind == "hex":
        return part("b", bytes.fromhex(inner))
    if kind == "set":
        return part("{", b"".join(sorted(map(encode, inner))))
    assert kind == "ids"
    return part("t", b"".join(each.to_bytes(4, "big") for each in inner))


def enc(value: Any) -> bytes:
    return b"\x01" + encode(value)


def hmac256(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869, no salt, 32 bytes: one round."""
    return hmac256(hmac256(bytes(32), secret), info + b"\x01")


def label_value(label: dict[str, Any]) -> list[Any]:
    """`label` as it stands in the vectors."""

    def blob(text: str | None) -> Any:
        return None if text is None else {"hex": text}

    return [
        "label",
        [
            ["tenant", label["tenant"]],
            ["templates", {"set": label["templates"]}],
            ["documents", {"set": label["documents"]}],
            ["issuer", label["issuer"]],
            ["subject", label["subject"]],
            ["narrowing", blob(label["narrowing"])],
            ["session", blob(label["session"])],
        ],
    ]


def context_digest(kind: str, context: dict[str, Any]) -> bytes:
    def field(name: str, value: Any) -> Any:
        if name.endswith("_digest") and value is not None:
            return {"hex": value}
        return {"set": value} if name == "flags" else value

    named = [[name, field(name, value)] for name, value in context.items()]
    return hashlib.sha256(enc([kind, named])).digest()


def chain(context: bytes, blocks: list[tuple[bytes, bytes, list[int]]]) -> list[bytes]:
    """Of (tag, key, ids) a block."""
    head, position, values = hmac256(blocks[0][1], b"\x00" + context), 0, []
    for tag, key, ids in blocks:
        body = enc([{"hex": tag.hex()}, position, {"ids": ids}])
        head = hmac256(key, b"\x01" + head + body)
        values.append(head)
        position += len(ids)
    return values


# ── The table ───────────────────────────────────────────────────────────────────────────────────────

NOBODY: dict[str, Any] = dict.fromkeys(("tenant", "issuer", "subject", "narrowing", "session"))
NOBODY |= {"templates": [], "documents": []}
CHAT, SUPPORT = [None, "chat", 1], ["acme", "tmpl_support", 7]
LEASE, FEES = ["doc_lease", 3, 1], ["doc_fees", 1, 12]
ALICE = {"tenant": "acme", "issuer": "https://idp.example", "subject": "alice"}
LABELS: dict[str, dict[str, Any]] = {
    "public": NOBODY | {"templates": [CHAT]},
    "tenant": NOBODY | {"tenant": "acme", "templates": [CHAT, SUPPORT]},
    "document": NOBODY | {"tenant": "acme", "templates": [CHAT, SUPPORT], "documents": [LEASE]},
    "documents": NOBODY | {"tenant": "acme", "documents": [FEES, LEASE]},
    "user": NOBODY | ALICE,
    "user of a document": NOBODY | ALICE | {"documents": [LEASE], "templates": [CHAT]},
    "narrowed": NOBODY | ALICE | {"narrowing": "ab" * 32},
    "session": NOBODY | ALICE | {"session": "00ff"},
    "empty names": NOBODY | {"tenant": "t", "issuer": "", "subject": ""},
    "not ASCII": NOBODY | {"tenant": "straße", "issuer": "i", "subject": "naïve\u0000|,"},
}
ASKED: dict[str, Any] = {
    "tokenizer_digest": "22" * 32,
    "template_digest": "33" * 32,
    "tools_digest": None,
    "locale": None,
    "region": "eu-central",
    "safety_policy": "default",
    "safety_policy_version": 2,
    "flags": ["a", "b"],
}
CONTEXT: dict[str, Any] = {
    "asked_digest": context_digest("asked", ASKED).hex(),
    "weights_digest": "11" * 32,
    "adapter_digest": None,
    "dtype": "bfloat16",
    "numerics": "invariant",
    "kernel_config": "cpu",
    "block_tokens": 4,
}
PROMPT = ("public", "tenant", "document", "user of a document")
IDS = [[0, 1, 2, 3], [4, 5, 6, 7], [49151, 0, 0, 4294967295], [9, 9, 9, 9]]
SECRET, PUBLIC, EPOCH = bytes(range(32)), bytes(range(32, 64)), bytes(range(16))


def vectors() -> dict[str, Any]:
    def secret(label: dict[str, Any]) -> bytes:
        return PUBLIC if label["tenant"] is None else SECRET

    def known(label: dict[str, Any]) -> dict[str, str]:
        encoded = enc(label_value(label))
        return {
            "encoded": encoded.hex(),
            "key": hkdf(secret(label), b"kv/v1" + encoded + EPOCH).hex(),
            "tag": hmac256(hkdf(secret(label), b"label-tag/v1"), encoded).hex(),
        }

    labels: dict[str, Any] = {
        name: {"label": label} | known(label) for name, label in LABELS.items()
    }
    digest = context_digest("context", CONTEXT)
    values = chain(
        digest,
        [
            (bytes.fromhex(labels[name]["tag"]), bytes.fromhex(labels[name]["key"]), ids)
            for name, ids in zip(PROMPT, IDS, strict=True)
        ],
    )
    return {
        "secret": SECRET.hex(),
        "public": PUBLIC.hex(),
        "epoch": EPOCH.hex(),
        "labels": labels,
        "asked": ASKED,
        "context": CONTEXT,
        "C0": digest.hex(),
        "chain": {
            "labels": list(PROMPT),
            "ids": IDS,
            "values": [value.hex() for value in values],
        },
    }


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=1, ensure_ascii=True))
