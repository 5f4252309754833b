"""Requests with labels, by short names: the pseudonym and the key of a label are digests of its name."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from executor.contract import Caching, Purge, Quota, Quotas, Revoke, Scope, Submit
from executor.settings import Settings
from tests.executor.fakes import Clock, FakeRunner, Harness, job

SIZE = 4
HOUR_MS = 3_600_000
CONTEXT = sha256(b"context").digest()
PROMPT = tuple(range(1, 19))  # four full blocks, and two tokens
DOC = tuple(range(1, 13))  # three full blocks
WORDS = (20, 21, 22, 23, 24, 25)


def tag(name: str) -> bytes:
    return sha256(b"tag " + name.encode()).digest()


def scope(name: str, until: int, **fields: object) -> Scope:
    covers = tuple(tag(each) for each in str(fields.pop("covers", "")).split())
    key = sha256(b"key " + str(fields.pop("key", name)).encode()).digest()
    return Scope(until=until, label=tag(name), key=key, covers=covers, **fields)  # type: ignore[arg-type]


def labelled(
    request: int,
    prompt: Sequence[int],
    *scopes: Scope,
    owner: str = "a",
    **fields: object,
) -> Submit:
    """Without scopes: all of it is the owner's only user's."""
    caching = {
        name: fields.pop(name, default)
        for name, default in (
            ("context", CONTEXT),
            ("snapshot", 1),
            ("idle_ms", HOUR_MS),
            ("absolute_ms", HOUR_MS),
        )
    }
    mine = scopes or (scope(f"{owner}/user", len(prompt)),)
    given = {"share": ((owner, 1.0),), "max_new_tokens": 1, **fields}
    named = Caching(owner=owner, scopes=mine, **caching)  # type: ignore[arg-type]
    return job(request, prompt, caching=named, **given)


def house_of(
    *quotas: Quota,
    pool: float = 0.5,
    kv_blocks: int = 64,
    clock: Clock | None = None,
    **limits: object,
) -> Harness:
    settings = Settings(check_invariants=True, pool_part=pool, **limits)  # type: ignore[arg-type]
    runner = FakeRunner(block_tokens=SIZE, kv_blocks=kv_blocks, context_tokens=200)
    house = Harness(runner, settings=settings, clock=clock)
    house.order(Quotas(quotas=quotas or (Quota(owner="a", part=0.5), Quota(owner="b", part=0.5))))
    return house


def revoke(*names: str, snapshot: int = 2, number: int = 1) -> Revoke:
    return Revoke(number=number, tags=tuple(tag(each) for each in names), snapshot=snapshot)


def purge(owner: str | None = None, *names: str, number: int = 1) -> Purge:
    return Purge(number=number, owner=owner, tags=tuple(tag(each) for each in names))


def cached(house: Harness, request: int, owner: int = 0) -> int:
    return house.ended(request, owner).cached


def ask(house: Harness, asked: Submit) -> int:
    """Run it to its end; how many tokens were there already."""
    house.submit(asked)
    house.run()
    return cached(house, asked.request)


def of_doc(
    request: int, words: tuple[int, ...] = WORDS, owner: str = "a", **fields: object
) -> Submit:
    """A question about a registered document."""
    who = fields.pop("who", f"{owner}/user")
    prompt = DOC + words
    return labelled(
        request,
        prompt,
        scope("doc", len(DOC), pinned=True, covers="doc@1"),
        scope(str(who), len(prompt), covers="doc@1"),
        owner=owner,
        **fields,
    )


def warm(request: int, owner: str = "a", **fields: object) -> Submit:
    doc = scope("doc", len(DOC), pinned=True, covers="doc@1")
    return labelled(request, DOC, doc, owner=owner, warm=True, **fields)


def unlike(request: int, n: int, owner: str = "a") -> Submit:
    """A prompt of four full blocks like no other."""
    return labelled(request, tuple((n + 7 * at) % 32 for at in range(17)), owner=owner)
