"""From headers to a principal: J19, J20, and that all refusals look alike to whoever is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.facts import Credential, CredentialKind, Principal, Role
from security import api_keys
from security.authenticate import KEY_ISSUER, Authenticator, KeyRecord
from security.failures import (
    AuthDenied,
    AuthFailure,
    AuthMalformed,
    AuthUnavailable,
    Denied,
    Malformed,
    Suspended,
    Unavailable,
)
from security.jwks_source import CannotRead, JwksSource
from security.proving import Proving
from security.tokens import IssuerRule
from tests.security.helpers import Clock, byte_source, run
from tests.security.kit import DROP, NOW_S, RULE, key_set, token
from tests.security.proof_kit import ASKED, proving

PEPPER = b"p" * 32
NEW = api_keys.mint(byte_source(1), PEPPER)


@dataclass(frozen=True)
class Record:
    id: str = NEW.id
    tenant: str | None = "acme"
    project: str | None = "search"
    user: str = "svc"
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset({"eng"})
    service_class: str | None = "batch"
    digest: bytes = NEW.digest
    expires_at_s: int | None = None
    revoked: bool = False
    tags: tuple[tuple[str, str], ...] = (("team", "search"),)


@dataclass
class World:
    """Everything around the authenticator, and what it was asked."""

    record: KeyRecord | None = field(default_factory=Record)
    lookup_error: Exception | None = None
    revoked: str | None = None
    revocation_error: Exception | None = None
    jwks: bytes | Exception = field(default_factory=key_set)
    background: bool = True
    clock: Clock = field(default_factory=lambda: Clock(NOW_S))
    digests: list[bytes] = field(default_factory=list)
    asked: list[dict[str, object]] = field(default_factory=list)
    fetches: int = 0
    rule: IssuerRule = RULE
    proving: Proving = field(default_factory=proving)

    async def find(self, digest: bytes) -> KeyRecord | None:
        self.digests.append(digest)
        if self.lookup_error is not None:
            raise self.lookup_error
        return self.record

    def is_revoked(
        self,
        *,
        key_id: str | None,
        token_id: str | None,
        issuer: str,
        subject: str,
        tenant: str | None,
        issued_at_s: int | None,
    ) -> str | None:
        self.asked.append(
            {
                "key": key_id,
                "token": token_id,
                "issuer": issuer,
                "subject": subject,
                "tenant": tenant,
                "issued": issued_at_s,
            }
        )
        if self.revocation_error is not None:
            raise self.revocation_error
        return self.revoked

    async def read(self) -> bytes:
        self.fetches += 1
        if isinstance(self.jwks, Exception):
            raise self.jwks
        return self.jwks

    def authenticator(self) -> Authenticator:
        return Authenticator(
            [(self.rule, JwksSource(self, clock=self.clock))],
            keys=self,
            revocations=self,
            pepper=PEPPER,
            clock_s=self.clock,
            proving=self.proving,
        )

    def ask(self, *headers: tuple[bytes, bytes], query: bytes = b"") -> Principal:
        return run(self.authenticator().authenticate(headers, query, ASKED))

    def denied(self, *headers: tuple[bytes, bytes]) -> Denied:
        with pytest.raises(AuthDenied) as caught:
            self.ask(*headers)
        return caught.value.reason


def bearer(raw: str) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + raw.encode()


# --- the good cases


def test_a_token() -> None:
    world = World()
    who = world.ask((b"host", b"x"), bearer(token()))
    assert (who.tenant, who.user, who.credential.kind) == ("acme", "alice", CredentialKind.TOKEN)
    assert world.asked == [
        {
            "key": None,
            "token": "t-1",
            "issuer": RULE.issuer,
            "subject": "alice",
            "tenant": "acme",
            "issued": NOW_S - 10,
        }
    ]
    assert world.digests == []


@pytest.mark.parametrize("name", (b"authorization", b"Authorization", b"x-api-key", b"X-Api-Key"))
def test_a_key(name: bytes) -> None:
    world = World()
    value = NEW.secret.encode()
    who = world.ask((name, value if b"pi" in name else b"bearer " + value))
    assert who == Principal(
        tenant="acme",
        project="search",
        user="svc",
        issuer=KEY_ISSUER,
        credential=Credential(CredentialKind.KEY, NEW.id),
        groups=frozenset({"eng"}),
        service_class="batch",
        tags=(("team", "search"),),
    )
    assert world.digests == [NEW.digest]
    assert world.asked[0]["key"] == NEW.id
    assert world.asked[0]["token"] is None


@pytest.mark.parametrize("raw", (NEW.secret, token()))
def test_spaces_before_a_credential_are_no_part_of_it(raw: str) -> None:
    """RFC 9110 §11.4: one or more of them."""
    one, three = (
        World().ask((b"authorization", b"Bearer" + by + raw.encode())) for by in (b" ", b"   ")
    )
    assert one == three


def test_a_keys_roles() -> None:
    admin = Record(roles=frozenset({"tenant_admin", "unheard_of"}))
    assert World(record=admin).ask(bearer(NEW.secret)).roles == {Role.TENANT_ADMIN}


# --- J19 and its kin: which credential

TWO: Sequence[Sequence[tuple[bytes, bytes]]] = (
    (bearer("a"), bearer("a")),
    (bearer(NEW.secret), (b"Authorization", b"Basic eA==")),
    (bearer(NEW.secret), (b"AUTHORIZATION", b"")),
    (bearer(NEW.secret), (b"x-api-key", NEW.secret.encode())),
    ((b"x-api-key", NEW.secret.encode()), (b"X-API-Key", NEW.secret.encode())),
)


@pytest.mark.parametrize("headers", TWO)
def test_j19_two_credentials_are_malformed(headers: Sequence[tuple[bytes, bytes]]) -> None:
    with pytest.raises(AuthMalformed) as caught:
        World().ask(*headers)
    assert caught.value.reason is Malformed.TWO_CREDENTIALS


@pytest.mark.parametrize(
    "query",
    (
        b"access_token=x",
        b"token=",
        b"api_key=x",
        b"token",
        b"a=b&access_token=x",
        b"a=b;access_token=x",
        b"ACCESS_TOKEN=x",
        b"%61ccess_token=x",
        b"%61%43CESS%5ftoken=x",
        b"access%5Ftoken=x",
        b"+access_token+=x",
        b"x-api-key=x",
        b"authorization=Bearer+x",
        b"q=" + NEW.secret.encode(),
        b"q=lg%5F" + NEW.secret[3:].encode(),
        b"q=" + token().encode(),
        b"q=bearer%20" + token().encode(),
        b"q=bearer%20%20" + token().encode(),
        b"q=bearer+" + NEW.secret.encode(),
        b"&&&token=x",
        b"a=1&token[]=x&token=x",
    ),
)
@pytest.mark.parametrize("headers", ((), (bearer(NEW.secret),)))
def test_j19_a_credential_in_the_query_is_malformed(
    query: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(AuthMalformed) as caught:
        World().ask(*headers, query=query)
    assert caught.value.reason is Malformed.CREDENTIAL_IN_QUERY


@pytest.mark.parametrize("query", (b"limit=20&after=eyJpZCI6MX0", b"tokens=5", b"q=token", b"&", b"=", b"%zz=%zz", b"max_tokens=5"))  # fmt: skip
def test_other_queries_pass(query: bytes) -> None:
    assert World().ask(bearer(NEW.secret), query=query).user == "svc"


@pytest.mark.parametrize(
    ("headers", "reason"),
    (
        ((), Denied.MISSING),
        (((b"cookie", b"token=x"),), Denied.MISSING),
        (((b"proxy-authorization", b"Bearer x"),), Denied.MISSING),
        (((b"authorization", b""),), Denied.SCHEME),
        (((b"authorization", b"Bearer"),), Denied.SCHEME),
        (((b"authorization", b"Bearer "),), Denied.SCHEME),
        (((b"authorization", b"Bearer  "),), Denied.SCHEME),
        (((b"authorization", b"Bearer  x"),), Denied.TOKEN_SHAPE),
        (((b"authorization", b"Bearer\tx"),), Denied.SCHEME),
        (((b"authorization", b"Bearer \tx"),), Denied.SCHEME),
        (((b"authorization", b"Bearer\xa0x"),), Denied.SCHEME),
        (((b"authorization", b"Bearer  x y"),), Denied.SCHEME),
        (((b"authorization", b"DPoP  x"),), Denied.PROOF_MISSING),
        (((b"authorization", b"Bearer" + b" " * 9000 + b"x"),), Denied.TOKEN_TOO_LONG),
        (((b"authorization", b"Bearer x y"),), Denied.SCHEME),
        (((b"authorization", b"Bearer x, Bearer y"),), Denied.SCHEME),
        (((b"authorization", b"Bearer \xff"),), Denied.SCHEME),
        (((b"authorization", b"Bearer x\x00"),), Denied.SCHEME),
        (((b"authorization", b"Basic YTpi"),), Denied.SCHEME),
        (((b"authorization", b"DPoP x"),), Denied.PROOF_MISSING),
        (((b"authorization", b"DPoP"),), Denied.SCHEME),
        (((b"authorization", NEW.secret.encode()),), Denied.SCHEME),
        (((b"authorization", b"Bearer " + b"x" * 9000),), Denied.TOKEN_TOO_LONG),
        (((b"x-api-key", b"x" * 9000),), Denied.TOKEN_TOO_LONG),
        (((b"x-api-key", token().encode()),), Denied.KEY_MALFORMED),
        (((b"x-api-key", b""),), Denied.KEY_MALFORMED),
        (((b"x-api-key", b"Bearer " + NEW.secret.encode()),), Denied.KEY_MALFORMED),
        ((bearer("lg_"),), Denied.KEY_MALFORMED),
        ((bearer("LG_" + NEW.secret[3:]),), Denied.TOKEN_SHAPE),
        ((bearer("x"),), Denied.TOKEN_SHAPE),
    ),
)
def test_what_is_no_credential_is_denied_before_anybody_is_asked(
    headers: Sequence[tuple[bytes, bytes]], reason: Denied
) -> None:
    world = World()
    assert world.denied(*headers) is reason
    assert (world.digests, world.asked, world.fetches) == ([], [], 0)


# --- tokens


@pytest.mark.parametrize(
    ("changes", "header", "reason"),
    (
        ({"iss": "https://evil.test/"}, {}, Denied.ISSUER),
        ({"iss": DROP}, {}, Denied.ISSUER),
        ({"iss": KEY_ISSUER}, {}, Denied.ISSUER),
        ({"aud": "other"}, {"kid": "new"}, Denied.AUDIENCE),
        ({"exp": NOW_S - 30}, {"kid": "new"}, Denied.EXPIRED),
        ({}, {"alg": "none", "kid": "new"}, Denied.ALGORITHM),
        ({}, {"typ": "JWT", "kid": "new"}, Denied.TYPE),
        ({}, {"jku": "http://127.0.0.1/"}, Denied.HEADER_MEMBER),
    ),
)
def test_j6_a_token_that_could_never_pass_fetches_nothing(
    changes: dict[str, object], header: dict[str, object], reason: Denied
) -> None:
    world = World()
    assert world.denied(bearer(token(changes, header))) is reason
    assert (world.fetches, world.asked) == (0, [])


def test_a_key_id_that_the_issuer_lacks() -> None:
    world = World()
    assert world.denied(bearer(token(header={"kid": "new"}))) is Denied.KEY_ID
    assert world.fetches == 1


def test_a_token_that_expires_while_its_key_is_fetched_is_refused() -> None:
    world = World()
    raw = token({"exp": NOW_S + 1})

    class Slow(World):
        async def read(self) -> bytes:
            self.clock.now_s += 31
            return key_set()

    world = Slow()
    assert world.denied(bearer(raw)) is Denied.EXPIRED


def test_j18_without_keys_nobody_passes() -> None:
    with pytest.raises(AuthUnavailable) as caught:
        World(jwks=CannotRead("down")).ask(bearer(token()))
    assert caught.value.reason is Unavailable.KEY_SET


# --- keys


@pytest.mark.parametrize(
    ("record", "reason"),
    (
        (None, Denied.KEY_UNKNOWN),
        (Record(digest=b"x" * 32), Denied.KEY_UNKNOWN),
        (Record(digest=NEW.digest[:8]), Denied.KEY_UNKNOWN),
        (Record(digest=b""), Denied.KEY_UNKNOWN),
        (Record(id="a" * 16), Denied.KEY_UNKNOWN),
        (Record(revoked=True), Denied.KEY_REVOKED),
        (Record(expires_at_s=NOW_S), Denied.KEY_EXPIRED),
        (Record(expires_at_s=NOW_S - 1), Denied.KEY_EXPIRED),
        (Record(expires_at_s=NOW_S, revoked=True), Denied.KEY_REVOKED),
        (Record(tenant=None), Denied.NO_TENANT),
        (Record(roles=frozenset({"operator"})), Denied.OPERATOR_WITH_TENANT),
    ),
)
def test_a_key_that_does_not_stand(record: Record | None, reason: Denied) -> None:
    assert World(record=record).denied(bearer(NEW.secret)) is reason


def test_a_key_about_to_expire_stands_and_says_when() -> None:
    who = World(record=Record(expires_at_s=NOW_S + 1)).ask(bearer(NEW.secret))
    assert who.credential.expires_at_s == NOW_S + 1


def test_a_store_that_cannot_answer() -> None:
    for error in (OSError("db at 10.0.0.1"), KeyError("x"), TimeoutError()):
        with pytest.raises(AuthUnavailable) as caught:
            World(lookup_error=error).ask(bearer(NEW.secret))
        assert caught.value.reason is Unavailable.KEY_LOOKUP
        assert str(caught.value) == "key_lookup"
    with pytest.raises(AuthDenied):
        World(lookup_error=AuthDenied(Denied.KEY_UNKNOWN)).ask(bearer(NEW.secret))


# --- J20: standing


@pytest.mark.parametrize("raw", (NEW.secret, token()))
def test_j20_revoked_and_suspended(raw: str) -> None:
    assert World(revoked="token_revoked").denied(bearer(raw)) is Denied.REVOKED
    with pytest.raises(Suspended) as suspended:
        World(revoked="tenant_suspended").ask(bearer(raw))
    assert suspended.value.tenant == "acme"
    with pytest.raises(AuthUnavailable) as unknown:
        World(revocation_error=OSError()).ask(bearer(raw))
    assert unknown.value.reason is Unavailable.REVOCATIONS


def test_j20_what_was_accepted_can_be_asked_about_again() -> None:
    world = World()
    authenticator = world.authenticator()
    who = run(authenticator.authenticate([bearer(token())], b"", ASKED))
    authenticator.check_standing(who)
    world.revoked = "subject_revoked"
    with pytest.raises(AuthDenied) as caught:
        authenticator.check_standing(who)
    assert (caught.value.tenant, caught.value.credential_id) == ("acme", "t-1")
    assert world.asked[0] == world.asked[1] == world.asked[2]


def test_an_operator_is_never_suspended_with_a_tenant() -> None:
    world = World(revoked="tenant_suspended")
    operator = token({"org": DROP, "roles": ["operator"]})
    assert world.denied(bearer(operator)) is Denied.REVOKED


# --- what a refusal says


def test_refusals_carry_nothing_that_was_sent() -> None:
    raw = token({"sub": "canary-subject", "org": "canary-tenant", "exp": 1})
    for value in (raw, raw + "x", "lg_canary" + "x" * 70, "canary.canary.canary"):
        with pytest.raises(AuthFailure) as caught:
            World().ask(bearer(value))
        chain: BaseException | None = caught.value
        while chain is not None:
            assert "canary" not in f"{chain!r}{chain}{getattr(chain, '__dict__', '')}"
            chain = chain.__cause__


def test_a_denial_names_a_tenant_only_where_the_credential_was_genuine() -> None:
    for record, tenant in (
        (Record(revoked=True), "acme"),
        (None, None),
        (Record(digest=b""), None),
    ):
        with pytest.raises(AuthDenied) as caught:
            World(record=record).ask(bearer(NEW.secret))
        assert caught.value.tenant == tenant


# --- construction


def test_unsafe_rules_are_refused_together() -> None:
    world = World()
    source = JwksSource(world, clock=world.clock)
    bad = replace(RULE, algorithms=("HS256",), typ=("JWT",))
    own = replace(RULE, issuer=KEY_ISSUER)
    with pytest.raises(ValueError, match=r"HS256.*typ.*one issuer.*lockgate:keys"):
        Authenticator(
            [(bad, source), (RULE, source), (own, source)],
            keys=world,
            revocations=world,
            pepper=PEPPER,
            clock_s=world.clock,
            proving=proving(),
        )


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"dpop", b"a"]), st.binary()),
        max_size=3,
    ),
    st.binary(max_size=60),
)
def test_fuzz_headers_and_query_give_a_failure_and_nothing_else(
    headers: list[tuple[bytes, bytes]], query: bytes
) -> None:
    with pytest.raises(AuthFailure):
        World().ask(*headers, query=query)
