"""From who is asking to the scopes that an executor is told: labels by supplier, never by text; what is
found is told and charged by the rules; nobody is refused for want of a cache."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from executor.contract import Caching, Cause, Ended, Submit
from executor.echo import EchoExecutor
from executor.echo_card import echo_card
from gateway.caching import ABSOLUTE_MS_MAX, Caches, CacheTerms, EndUser, context_of
from gateway.caching_start import enforce
from gateway.end_users import EndUsers, spelt
from gateway.errors import ApiError
from gateway.text.prompts import Prompt, chat_prompt
from gateway.text.templates import ChatMessage, ChatTemplate, Piece
from gateway.text.tokenizer import Vocabulary
from policies.facts import Credential, CredentialKind, Principal, Standing
from policies.scope.decision import Acl, Decision, Snapshot, decide
from policies.scope.labels import Document, Label, Template, documents, public, tenant
from policies.scope.prefix import Kept, computed_beforehand
from policies.verdict import Allow, Deny
from security.cache_keys import CacheKeys
from security.keyring_tenants import SecretGone, TenantSecret
from tests.gateway.inhouse import CACHES, MODEL, Inhouse, chat_body, inhouse
from tests.gateway.test_text_templates import NOW

CARD = echo_card(context_tokens=4096, kv_blocks=64)
VOCABULARY = Vocabulary.from_card(CARD)
CHATML = ChatTemplate.compile(CARD, VOCABULARY)
SUPPORT, LEASE = Template("acme", "tmpl_a", 1), Document("doc_1", 1, 1)
RULES, TEXT = "Answer only from the lease below. Be short.", "The lease ends in May." * 3
ALICE = Principal("acme", None, "alice", "idp", Credential(CredentialKind.TOKEN, None))
ACL = Acl("acme", 1, 1, users=frozenset({("idp", "alice"), ("idp", "bob")}))
NOBODY = EndUser()
TERMS = {"acme": CacheTerms(0.25, 3600), "globex": CacheTerms(0.25, 3600)}


def permit(who: Principal, label: Label) -> Allow[Decision] | Deny:
    snapshot = Snapshot(7, 0, {"doc_1": ACL}, frozenset({SUPPORT}))
    standing = Standing(who.tenant or "", False, frozenset(), ())
    return decide(who, standing, label, snapshot, now_ns=1, stale_ns_max=9)


def caches(
    terms: dict[str, CacheTerms] = TERMS,
    epoch: bytes = b"e" * 16,
    beforehand: Kept = lambda _: True,
) -> Caches:
    def secret_of(name: str) -> TenantSecret:
        if name == "shredded":
            raise SecretGone
        return TenantSecret(name, 1, name.encode().ljust(32, b"."))

    return Caches(CacheKeys(b"p" * 32, epoch, secret_of), "#".__add__, permit, terms, beforehand)


def registered_prompt(*said: str) -> Prompt:
    pieces = [
        Piece(RULES, tenant("acme", "tmpl_a", 1)),
        Piece(TEXT, documents("acme", [LEASE])),
        *(Piece(text) for text in said),
    ]
    messages = [ChatMessage.of("system", pieces), ChatMessage("user", "When does it end?")]
    return chat_prompt(VOCABULARY, CHATML, messages, now=NOW)


def pasted_prompt() -> Prompt:
    messages = [ChatMessage("system", RULES + TEXT), ChatMessage("user", "When does it end?")]
    return chat_prompt(VOCABULARY, CHATML, messages, now=NOW)


@dataclass(frozen=True)
class World:
    """What one request's caching follows from."""

    who: Principal = ALICE
    named: EndUser = NOBODY
    prompt: Prompt = field(default_factory=registered_prompt)
    terms: dict[str, CacheTerms] = field(default_factory=lambda: TERMS)
    templated: bool = True
    card: Any = CARD

    def caching(self) -> Caching:
        made = caches(self.terms)
        scoping = made.scoping(
            self.who.tenant or "",
            self.card,
            (self.prompt.supplied,),
            self.named,
            templated=self.templated,
        )
        (found,) = made.decided(self.who, scoping, 1)
        return found


OWN = World(prompt=pasted_prompt())


def test_a_registered_beginning_is_shared_and_the_rest_is_the_users() -> None:
    """[scaffold][template][document] under labels that all readers have; pinned, and their covers name
    what the right rests on."""
    made = World().caching()
    prompt = registered_prompt()
    lengths = [span.tokens for span in prompt.spans]
    assert [scope.until for scope in made.scopes] == [
        sum(lengths[:2]),
        sum(lengths[:3]),
        len(prompt.ids),
    ]
    assert [(scope.pinned, scope.disclosed) for scope in made.scopes] == [
        (True, True),
        (True, True),
        (False, True),
    ]
    bob = World(who=replace(ALICE, user="bob")).caching()
    assert made.scopes[:2] == bob.scopes[:2]
    assert not {made.scopes[2].label, made.scopes[2].key} & {bob.scopes[2].label, bob.scopes[2].key}
    assert caches().keys.of_document("acme", LEASE) in made.scopes[2].covers
    assert (made.owner, made.snapshot) == ("#acme", 7)
    assert b"acme" not in repr(made).encode() + made.context


def test_what_nobody_computes_beforehand_is_the_users_that_it_may_be_found_at_all() -> None:
    """A document behind a template is not: its pinned blocks would never be there, nor any behind them.
    It still names the document's version."""
    kept = caches(beforehand=computed_beforehand)
    scoping = kept.scoping("acme", CARD, (registered_prompt().supplied,), NOBODY, templated=True)
    (made,) = kept.decided(ALICE, scoping, 1)
    assert [scope.pinned for scope in made.scopes] == [True, False]
    assert made.scopes[0] == World().caching().scopes[0]
    assert kept.keys.of_document("acme", LEASE) in made.scopes[1].covers
    alone = Label(tenant="acme", documents=frozenset({LEASE}))
    assert computed_beforehand(alone)
    assert not computed_beforehand(public("tmpl_p", 1))


def test_pasted_text_of_a_template_and_a_document_is_the_users() -> None:
    """The same tokens, by another supplier: nothing of it has a label, key or cover of what is registered."""
    registered, again = World().caching(), pasted_prompt()  # whose words have been seen before
    pasted = replace(OWN, prompt=again).caching()
    assert registered_prompt().ids == again.ids
    assert [(each.pinned, each.until) for each in pasted.scopes] == [(False, len(again.ids))]
    (only,) = pasted.scopes
    for scope in registered.scopes:
        assert scope.label != only.label
        assert scope.key != only.key
    assert caches().keys.of_document("acme", LEASE) not in only.covers
    assert caches().keys.of_template(SUPPORT) not in only.covers


@pytest.mark.parametrize(
    "other",
    (
        replace(OWN, who=replace(ALICE, user="bob")),
        replace(OWN, who=replace(ALICE, issuer="other")),
        replace(OWN, who=replace(ALICE, tenant="globex")),
        replace(OWN, named=EndUser(safety_identifier="x")),
        replace(OWN, named=EndUser(safety_identifier="")),
        replace(OWN, named=EndUser(user="x")),
        replace(OWN, named=EndUser(prompt_cache_key="x")),
        replace(OWN, terms={"acme": replace(TERMS["acme"], region="eu")}),
        replace(OWN, templated=False),
        replace(OWN, card=msgspec.structs.replace(CARD, tokenizer_digest="ab" * 32)),
        replace(OWN, card=msgspec.structs.replace(CARD, template_digest="ab" * 32)),
    ),
)
def test_whatever_differs_nothing_is_shared(other: World) -> None:
    mine, theirs = OWN.caching(), other.caching()
    same_label = mine.scopes[0].label == theirs.scopes[0].label
    assert same_label == (mine.scopes[0].key == theirs.scopes[0].key)
    assert not same_label or mine.context != theirs.context
    assert OWN.caching() == mine  # and where nothing differs all of it is the same


def test_each_of_three_names_is_another_narrowing() -> None:
    labels = {
        replace(OWN, named=named).caching().scopes[0].label
        for named in (
            EndUser("a", "b", "c"),
            EndUser("a", "b", None),
            EndUser("a", None, "b"),
            EndUser(None, "a", "b"),
            EndUser("ab", None, None),
            EndUser(),
        )
    }
    assert len(labels) == 6


def test_the_context_knows_all_that_the_gateway_knows() -> None:
    def made(**fields: Any) -> bytes:
        return context_of(CARD, **({"region": None, "templated": True} | fields))

    differing = [
        made(),
        made(region="eu"),
        made(region=""),
        made(templated=False),
        made(tools_digest=b"t" * 32),
        made(locale="de"),
        made(flags=frozenset({"x"})),
    ]
    assert len(set(differing)) == len(differing)
    assert made() == made()


def test_what_lies_unread_and_what_is_read_for_ever_both_end() -> None:
    made = OWN.caching()
    assert (made.idle_ms, made.absolute_ms) == (3_600_000, 24 * 3_600_000)
    long = replace(OWN, terms={"acme": CacheTerms(0.25, 604_800)}).caching()
    assert (long.idle_ms, long.absolute_ms) == (ABSOLUTE_MS_MAX, ABSOLUTE_MS_MAX)
    kept = caches()
    scoping = kept.scoping(
        "acme", CARD, (OWN.prompt.supplied,), EndUser(), templated=True, expires_ns=5_000_000_001
    )
    (ends,) = kept.decided(ALICE, scoping, 1)  # with the right to the first of its documents
    assert (ends.idle_ms, ends.absolute_ms) == (5000, 5000)


def test_who_opted_in_shares_what_traffic_leaves_and_is_not_told() -> None:
    terms = {"acme": replace(TERMS["acme"], opportunistic=True)}
    made = World(terms=terms).caching()
    assert [(scope.pinned, scope.disclosed) for scope in made.scopes] == [
        (False, False),
        (False, False),
        (False, True),
    ]
    assert [each.label for each in made.scopes] == [each.label for each in World().caching().scopes]


def test_at_registration_it_is_the_shared_beginning_alone() -> None:
    kept, prompt = (
        caches(TERMS | {"acme": replace(TERMS["acme"], opportunistic=True)}),
        registered_prompt(),
    )
    scoping = kept.scoping("acme", CARD, (prompt.supplied,), EndUser(), templated=True)
    assert scoping is not None
    verdict = permit(ALICE, documents("acme", [LEASE]))
    with_template = permit(
        ALICE, Label(tenant="acme", templates=frozenset({SUPPORT}), documents=frozenset({LEASE}))
    )
    assert isinstance(verdict, Allow)
    assert isinstance(with_template, Allow)
    warm = kept.registered("acme", with_template.value, scoping, 1)
    assert warm is not None
    assert all(scope.pinned for scope in warm.scopes)
    assert [each.key for each in warm.scopes] == [each.key for each in World().caching().scopes[:2]]
    assert warm.context == World().caching().context
    with pytest.raises(AssertionError):
        kept.registered("acme", verdict.value, scoping, 1)
    own = kept.scoping("acme", CARD, (OWN.prompt.supplied,), EndUser(), templated=True)
    assert own is not None
    assert kept.registered("acme", with_template.value, own, 1) is None


def test_a_right_that_is_gone_is_a_404_and_never_a_request_without_a_cache() -> None:
    carol = World(who=replace(ALICE, user="carol"))
    with pytest.raises(ApiError) as caught:
        carol.caching()
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "terms", ({}, {"acme": CacheTerms(0.0, 3600)}, {"acme": CacheTerms(0.25, 0)})
)
def test_without_terms_nothing_is_kept(terms: dict[str, CacheTerms]) -> None:
    kept = caches(terms)
    assert kept.scoping("acme", CARD, (OWN.prompt.supplied,), EndUser(), templated=True) is None
    assert kept.decided(ALICE, None, 1) == ()


def test_quotas_follow_from_the_configuration_alone() -> None:
    kept, echo = caches({}), EchoExecutor()
    terms = TERMS | {"off": CacheTerms(0.0, 3600), "old": CacheTerms(0.5, 0)}
    assert kept.enforce(terms, [echo]) == {}
    assert {each.owner: each.part for each in echo.quotas} == {"#acme": 0.25, "#globex": 0.25}
    opted = terms | {"acme": replace(TERMS["acme"], opportunistic=True)}
    assert kept.enforce(opted, [echo]) == {"acme": True}
    assert kept.enforce(opted, [echo]) == {}
    assert kept.enforce({}, [echo]) == {"acme": False}
    assert echo.quotas == ()


# Through the house


@dataclass
class Seen:
    """The submits of a house, and what its echo is to say it had found of them."""

    found: tuple[int, int] = (0, 0)
    submits: list[Submit] = field(default_factory=list)
    together: int = 1
    met: asyncio.Event = field(default_factory=asyncio.Event)

    async def gate(self, submit: Submit, k: int) -> None:
        """Nobody says anything before so many are here `together`."""
        if k == 0:
            self.submits.append(submit)
            if len(self.submits) >= self.together:
                self.met.set()
            await self.met.wait()

    def echo(self) -> EchoExecutor:
        return EchoExecutor(gate=self.gate, found=lambda submit: self.found)

    def of(self, at: int = -1) -> Caching:
        caching = self.submits[at].caching
        assert caching is not None
        return caching


def lived(folder: Path, story: Callable[[Inhouse, Seen], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        seen = Seen()
        async with inhouse(folder, echo=seen.echo(), **options) as home:
            await story(home, seen)
            await home.at_rest()

    asyncio.run(run())


def test_every_request_says_under_which_labels_it_may_be_kept(tmp_path: Path) -> None:
    async def story(home: Inhouse, seen: Seen) -> None:
        alice, bob = home.caller("acme/alice"), home.caller("acme/bob")
        assert (await alice.chat("hello")).status == 200
        mine, submit = seen.of(), seen.submits[-1]
        assert mine.owner == submit.share[0][0]
        assert [scope.until for scope in mine.scopes] == [len(submit.prompt)]
        assert mine.owner in {each.owner for each in home.echo.quotas}
        await alice.chat("hello")
        assert seen.of() == mine
        await bob.chat("hello")
        assert seen.of().scopes[0].key != mine.scopes[0].key
        assert seen.of().owner == mine.owner
        await home.caller("globex/carol").chat("hello")
        assert seen.of().owner != mine.owner
        await alice.chat("hello", safety_identifier="customer-1")
        assert seen.of().scopes[0].label != mine.scopes[0].label
        await alice.post("/v1/completions", {"model": MODEL, "prompt": ["a", "bc"], "n": 2})
        four = [seen.of(at) for at in range(-4, 0)]
        assert {each.scopes[0].label for each in four} == {mine.scopes[0].label}
        assert sorted(each.scopes[0].until for each in four) == [1, 1, 2, 2]
        assert four[0].context != mine.context  # no template made these prompts

    lived(tmp_path, story)


def test_without_a_secret_or_a_quota_a_request_is_served_and_nothing_is_kept(
    tmp_path: Path,
) -> None:
    async def story(home: Inhouse, seen: Seen) -> None:
        await home.house.secrets.shred("acme")
        assert (await home.caller("acme/alice").chat("hello", user="x")).status == 200
        assert (await home.caller("globex/carol").chat("hello")).status == 200
        assert [submit.caching for submit in seen.submits] == [None, None]

    lived(tmp_path, story, caches={"acme": CACHES["acme"], "globex": CacheTerms(0.0, 3600)})


def test_what_was_found_is_told_charged_and_explained(tmp_path: Path) -> None:
    """`prompt_tokens` has all; what was cached is once in it, at its own price."""

    async def story(home: Inhouse, seen: Seen) -> None:
        seen.found = (32, 16)
        caller, body = home.caller(), chat_body("a long enough question", n=2, max_tokens=4)
        answer = await caller.post("/v1/chat/completions", body)
        usage, total = answer.json()["usage"], len(seen.submits[0].prompt)
        assert usage["prompt_tokens"] == total
        assert usage["prompt_tokens_details"] == {"cached_tokens": 32, "cache_write_tokens": 0}
        view = (await caller.get("/v1/requests/" + answer.headers["x-request-id"])).json()
        lines = {line["meter"]: line["tokens"] for line in view["price_lines"]}
        assert lines == {"input": total - 32, "cached_input": 32, "output": 8}
        assert (view["tokens"]["input"], view["tokens"]["cached_input"]) == (total, 32)
        stream = await caller.post(
            "/v1/chat/completions",
            body | {"stream": True, "stream_options": {"include_usage": True}},
        )
        assert stream.events()[-2]["usage"] == usage
        seen.found = (0, 0)
        cold = (await caller.post("/v1/chat/completions", body)).json()["usage"]
        assert cold["prompt_tokens_details"]["cached_tokens"] == 0
        assert cold["prompt_tokens"] == total
        record = next(each for each in home.audited() if each["kind"] == "request.completed")
        assert (record["input_tokens"], record["cached_tokens"]) == (total, 32)

    lived(tmp_path, story)


def test_no_more_is_ever_cached_than_there_was(tmp_path: Path) -> None:
    """An executor that counts wrongly makes no negative line, and no second price for one token."""

    async def story(home: Inhouse, seen: Seen) -> None:
        class Liar(EchoExecutor):
            def _end(self, job: Any, cause: Cause, *more: Any, **named: Any) -> None:
                job.cached, job.prefilled = 10**6, 5
                super()._end(job, cause, *more, **named)

        liar = Liar()
        home.house.deployments[MODEL].executor = liar
        usage = (await home.caller().chat("hello")).json()["usage"]
        cold = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        assert cold == 5
        assert 5 < usage["prompt_tokens"] < 100

    lived(tmp_path, story)


def test_what_ends_for_a_right_that_is_gone_says_so(tmp_path: Path) -> None:
    async def story(home: Inhouse, seen: Seen) -> None:
        home.house.deployments[MODEL].executor = EchoExecutor(
            refuses=lambda _: Ended(request=0, cause=Cause.REVOKED)
        )
        answer = await home.caller().chat("hello")
        assert (answer.status, answer.error["code"]) == (403, "authorization_revoked")

    lived(tmp_path, story)


def test_an_opt_in_to_sharing_is_recorded(tmp_path: Path) -> None:
    opted = {"acme": replace(CACHES["acme"], opportunistic=True), "globex": CACHES["globex"]}

    async def story(home: Inhouse, seen: Seen) -> None:
        await enforce(home.house, CACHES)
        modes = [
            (each["tenant"], each["outcome"])
            for each in home.audited()
            if each["kind"] == "cache.sharing"
        ]
        assert modes == [("acme", "opportunistic"), ("acme", "own")]

    lived(tmp_path, story, caches=opted)


def test_the_customers_of_one_principal_share_its_part_and_widen_it_by_nothing() -> None:
    here = EndUsers()
    with here.present("p", None) as alone, here.present("p", "x") as one:
        assert (alone, one) == (("p", 1.0), ("x", 0.5))
        with here.present("p", "x") as again, here.present("q", "x") as other:
            assert (again, other) == (("x", 0.5), ("x", 1.0))
    with here.present("p", "y") as later:
        assert later == ("y", 1.0)
    assert here == EndUsers()


def test_customers_are_children_of_who_asks_for_them(tmp_path: Path) -> None:
    async def story(home: Inhouse, seen: Seen) -> None:
        alice, bob = home.caller("acme/alice"), home.caller("acme/bob")
        for caller, named in (
            (alice, {}),
            (alice, {"user": "customer"}),
            (alice, {"safety_identifier": "customer"}),
            (alice, {"user": "customer", "prompt_cache_key": "k"}),
            (bob, {"user": "customer"}),
        ):
            await caller.chat("hello", **named)
        shares = [submit.share for submit in seen.submits]
        assert {share[0] for share in shares} == {shares[0][0]}
        names = [share[1][0] for share in shares]
        assert names[1] == names[3]  # a conversation of a customer is the customer's
        assert len(set(names)) == 4
        assert not any("customer" in name for name in names)

    async def at_once(home: Inhouse, seen: Seen) -> None:
        seen.together = 3
        alice = home.caller("acme/alice")
        await asyncio.gather(*(alice.chat("hello", user=each) for each in ("a", "b", "c")))
        assert sorted(submit.share[1][1] for submit in seen.submits) == [1 / 3, 1 / 2, 1]

    lived(tmp_path / "one", story)
    lived(tmp_path / "two", at_once)
    assert spelt(ALICE, ("a", None)) != spelt(ALICE, (None, "a"))
