"""P1, P2 and P9 in their pure form: two requests that differ in one thing, and which of their blocks
have one value.  Where a scope is the same the values must be equal too: a cache that shares nothing
passes every other test.

Blocks of the prompt here: one of the model's scaffold (public), two of a tenant's template, two of a
document, two of the user's own text; what comes in later is seen in every block after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from policies.scope import labels
from policies.scope.blocks import Segment, rising
from policies.scope.chain import begin, of_prompt
from policies.scope.context import Asked, Context
from policies.scope.labels import Document, Template
from security.cache_keys import CacheKeys, narrowing
from security.keyring_tenants import TenantSecret
from tests.policies.scope.test_chain import ASKED, BASE, OTHER, OTHER_ASKED

SIZE = 4
BLOCKS = 7
SCAFFOLD, TEMPLATE, DOCUMENT, OWN = 0, 1, 3, 5
"""The first block of each kind."""
NONE = BLOCKS
"""Nothing differs."""

CHAT, SUPPORT = Template(None, "chat", 1), Template("acme", "support", 7)
LEASE = Document("doc_lease", 3, 1)


@dataclass(frozen=True)
class World:
    """Everything that goes into the blocks of one request, from where the house gets it."""

    tenant: str = "acme"
    issuer: str = "idp"
    subject: str = "alice"
    safety_identifier: str | None = None
    end_user: str | None = None
    prompt_cache_key: str | None = None
    session: bytes | None = None
    chat: Template = CHAT
    support: Template = SUPPORT
    document: Document = LEASE
    pasted: bool = False
    asked: Asked = ASKED
    context: Context = BASE
    tokens: tuple[int, ...] = tuple(range(100, 100 + SIZE * BLOCKS))
    epoch: bytes = b"e" * 16
    secrets: dict[str, bytes] = field(
        default_factory=lambda: {"acme": b"a" * 32, "globex": b"g" * 32}
    )

    def values(self) -> tuple[bytes, ...]:
        """As the house will: segments, labels, keys, chain."""
        keys = keys_of(self)
        user = labels.user(
            self.tenant,
            self.issuer,
            self.subject,
            narrowing(
                self.secrets[self.tenant],
                safety_identifier=self.safety_identifier,
                user=self.end_user,
                prompt_cache_key=self.prompt_cache_key,
            ),
        )
        if self.session is not None:
            user = labels.session(user, self.session)
        of_document = user if self.pasted else labels.documents(self.tenant, {self.document})
        owner = None if self.support.owner is None else self.tenant
        support = labels.Label(
            tenant=owner, templates=frozenset({replace(self.support, owner=owner)})
        )
        prompt = (
            Segment(labels.Label(templates=frozenset({self.chat})), SIZE),
            Segment(support, 2 * SIZE),
            Segment(of_document, 2 * SIZE),
            Segment(user, 2 * SIZE),
        )
        context = replace(self.context, asked_digest=self.asked.digest())
        scopes = [(step.until, keys.scope(step.label)) for step in rising(prompt)]
        _, found = of_prompt(self.tokens, scopes, context.digest(), SIZE)
        values = [value for _, value in found]
        assert len(values) == BLOCKS
        return tuple(values)


def keys_of(world: World) -> CacheKeys:
    def secret_of(tenant: str) -> TenantSecret:
        return TenantSecret(tenant, 1, world.secrets[tenant])

    return CacheKeys(b"p" * 32, world.epoch, secret_of)


ONE = World()


def with_token(at: int) -> Callable[[World], World]:
    return lambda world: replace(world, tokens=(*world.tokens[:at], 7, *world.tokens[at + 1 :]))


def swapped(world: World) -> World:
    """The same blocks in another place: the two of the user's text change places."""
    ids = world.tokens
    return replace(world, tokens=(*ids[:20], *ids[24:28], *ids[20:24]))


def changed(**values: Any) -> Callable[[World], World]:
    return lambda world: replace(world, **values)


def in_asked(name: str) -> Callable[[World], World]:
    return lambda world: replace(world, asked=replace(world.asked, **{name: OTHER_ASKED[name]}))


def in_context(name: str) -> Callable[[World], World]:
    return lambda world: replace(world, context=replace(world.context, **{name: OTHER[name]}))


# What is changed → the first block that differs.  All after it differ too, and none before it.
MATRIX: dict[str, tuple[Callable[[World], World], int]] = {
    "nothing": (changed(), NONE),
    "tenant": (changed(tenant="globex"), TEMPLATE),
    "tenant of equal secret": (
        changed(tenant="globex", secrets=dict.fromkeys(("acme", "globex"), b"a" * 32)),
        TEMPLATE,
    ),
    "tenant's secret": (changed(secrets={"acme": b"b" * 32}), TEMPLATE),
    "user": (changed(subject="bob"), OWN),
    "issuer": (changed(issuer="other"), OWN),
    "safety_identifier": (changed(safety_identifier="x"), OWN),
    "safety_identifier, empty": (changed(safety_identifier=""), OWN),
    "user of the client": (changed(end_user="x"), OWN),
    "prompt_cache_key": (changed(prompt_cache_key="x"), OWN),
    "session": (changed(session=b"s"), OWN),
    "document": (changed(document=replace(LEASE, id="doc_other")), DOCUMENT),
    "ACL version": (changed(document=replace(LEASE, acl_version=4)), DOCUMENT),
    "content version": (changed(document=replace(LEASE, content_version=2)), DOCUMENT),
    "document pasted": (changed(pasted=True), DOCUMENT),
    "template": (changed(support=replace(SUPPORT, id="other")), TEMPLATE),
    "template version": (changed(support=replace(SUPPORT, version=8)), TEMPLATE),
    "template's owner": (changed(support=replace(SUPPORT, owner=None)), TEMPLATE),
    "public template version": (changed(chat=replace(CHAT, version=2)), SCAFFOLD),
    "epoch": (changed(epoch=b"f" * 16), SCAFFOLD),
    "position": (swapped, OWN),
    **{f"token {at}": (with_token(at), at // SIZE) for at in range(SIZE * BLOCKS)},
    **{f"asked: {each.name}": (in_asked(each.name), SCAFFOLD) for each in fields(Asked)},
    **{
        f"context: {each.name}": (in_context(each.name), SCAFFOLD)
        for each in fields(Context)
        if each.name != "asked_digest"
    },
}


@pytest.mark.parametrize("name", MATRIX)
def test_one_difference_and_no_value_after_it_coincides(name: str) -> None:
    change, first = MATRIX[name]
    mine, other = ONE.values(), change(ONE).values()
    assert mine[:first] == other[:first]
    assert not set(mine[first:]) & set(other)
    assert not set(other[first:]) & set(mine)


def test_all_differences_at_once_are_all_different() -> None:
    """No two of the changes come to one value by another way."""
    last = [change(ONE).values()[-1] for change, _ in MATRIX.values()]
    assert len(set(last)) == len(MATRIX)


def test_a_block_is_another_after_another_parent() -> None:
    """Its own tokens, place and label the same: the first token of all is another."""
    mine, other = ONE.values(), with_token(0)(ONE).values()
    assert not set(mine) & set(other)


def test_one_block_repeated_is_another_each_time() -> None:
    values = replace(ONE, tokens=(5,) * SIZE * BLOCKS).values()
    assert len(set(values)) == BLOCKS


def test_the_same_words_under_another_label_are_something_else() -> None:
    """P1: equal text is irrelevant.  Each segment's tokens, given by the user instead."""
    keys = keys_of(ONE)
    alice = keys.scope(labels.user("acme", "idp", "alice"))
    _, pasted = begin(alice, BASE.digest(), SIZE).extend(alice, ONE.tokens)
    assert not set(pasted) & set(ONE.values())
