"""Bound tokens from headers to a principal: proven always, each proof once, and what a refusal may tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from security import dpop, proving
from security.authenticate import offers_proof
from security.failures import (
    OF_THE_PROOF,
    AuthDenied,
    AuthMalformed,
    AuthUnavailable,
    Denied,
    Malformed,
    Suspended,
    Unavailable,
)
from security.proving import NONCE_S, Nonces
from security.tokens import Binding
from tests.security import proof_kit
from tests.security.kit import DROP, NOW_S, RULE, token
from tests.security.proof_kit import HOLDER, STRANGER, Spent, bound, digest, jwk, proof
from tests.security.test_authenticate import NEW, World, bearer

REQUIRED = replace(RULE, binding=Binding.REQUIRED)
OFF = replace(RULE, binding=Binding.OFF)
NONCED = replace(RULE, nonce=True)
Header = tuple[bytes, bytes]


def dpop_header(raw: str) -> Header:
    return b"dpop", raw.encode()


def proven(raw: str, **how: object) -> tuple[Header, Header]:
    """A token and its proof, as a client sends them."""
    shown = proof(raw, **how)  # type: ignore[arg-type]  # passed on as it came
    return (b"authorization", b"DPoP " + raw.encode()), dpop_header(shown)


def denied(world: World, *headers: Header) -> AuthDenied:
    with pytest.raises(AuthDenied) as caught:
        world.ask(*headers)
    return caught.value


def test_a_bound_token_with_its_proof_is_the_same_principal_as_a_plain_one() -> None:
    """So neither idempotency keys nor labels of the cache change when an issuer binds its tokens."""
    for rule in (RULE, REQUIRED):
        assert World(rule=rule).ask(*proven(token(bound()))) == World().ask(bearer(token()))


@pytest.mark.parametrize("scheme", (b"DPoP", b"dpop", b"DPOP"))
def test_the_scheme_is_read_in_any_case(scheme: bytes) -> None:
    raw = token(bound())
    (_, value), shown = proven(raw)
    headers = [(b"Authorization", scheme + value[4:]), (b"DPoP", shown[1])]
    assert World().ask(*headers).user == "alice"
    assert offers_proof(headers)
    assert not offers_proof([bearer(raw)])


def test_a_bound_token_is_never_a_bearer_token() -> None:
    for rule in (RULE, REQUIRED, OFF):
        assert World(rule=rule).denied(bearer(token(bound()))) is Denied.BOUND_TOKEN
    for rule, raw in ((RULE, token(bound())), (RULE, token())):
        headers = (bearer(raw), dpop_header(proof(raw)))
        assert World(rule=rule).denied(*headers) is Denied.PROOF_STRAY


def test_an_unbound_token_is_not_proven_by_any_proof() -> None:
    for rule in (RULE, REQUIRED):
        assert World(rule=rule).denied(*proven(token())) is Denied.PROOF_STRAY
    assert World(rule=REQUIRED).denied(bearer(token())) is Denied.UNBOUND_TOKEN


def test_an_issuer_that_is_off_has_no_bound_tokens() -> None:
    assert World(rule=OFF).denied(*proven(token(bound()))) is Denied.BOUND_TOKEN
    assert World(rule=OFF).ask(bearer(token())).user == "alice"


@pytest.mark.parametrize(
    "cnf",
    (
        bound(STRANGER)["cnf"],
        {},
        None,
        [],
        "x",
        {"jkt": None},
        {"jkt": [bound()["cnf"]]},
        {"jkt": ""},
        {"jwk": jwk()},
        {"x5t#S256": "x"},
        {**dict(bound()["cnf"]), "x5t#S256": "x"},  # type: ignore[call-overload]  # it is an object
    ),
)
def test_the_token_is_bound_to_exactly_the_key_that_was_shown(cnf: object) -> None:
    assert World().denied(*proven(token({"cnf": cnf}))) is Denied.PROOF_BINDING
    assert World().denied(bearer(token({"cnf": cnf}))) is Denied.BOUND_TOKEN


def test_a_stranger_proves_nothing_with_a_stolen_token() -> None:
    stolen = token(bound(HOLDER))
    assert World().denied(*proven(stolen, key=STRANGER)) is Denied.PROOF_BINDING
    borrowed = proven(stolen, key=STRANGER, header={"jwk": jwk(HOLDER)})
    assert World().denied(*borrowed) is Denied.PROOF_SIGNATURE


def test_no_key_is_proven_and_none_is_beside_a_proof() -> None:
    (_, shown) = proven(NEW.secret)
    scheme = (b"authorization", b"DPoP " + NEW.secret.encode())
    plain = (b"x-api-key", NEW.secret.encode())
    for headers in ((scheme, shown), (scheme,), (plain, shown), (bearer(NEW.secret), shown)):
        world = World()
        assert world.denied(*headers) is Denied.PROOF_STRAY
        assert world.digests == []


def test_there_is_one_proof_or_none_is_chosen() -> None:
    scheme, shown = proven(token(bound()))
    with pytest.raises(AuthMalformed) as caught:
        World().ask(scheme, shown, shown)
    assert caught.value.reason is Malformed.TWO_PROOFS
    assert World().denied(scheme) is Denied.PROOF_MISSING
    assert World().denied(scheme, dpop_header("x" * 8193)) is Denied.PROOF_SHAPE
    with pytest.raises(AuthMalformed):
        World().ask(scheme, bearer(token()), shown)


# --- once


def passes(world: World, *headers: Header) -> bool:
    try:
        world.ask(*headers)
    except AuthDenied:
        return False
    return True


def test_a_proof_counts_once_for_its_key() -> None:
    world = World()
    headers = proven(token(bound()))
    world.ask(*headers)
    why = denied(world, *headers)
    assert why.reason is Denied.PROOF_REPLAYED
    assert (why.tenant, why.credential_id) == ("acme", "t-1")
    again = proven(token(bound()), claims={"jti": "p-2"})
    anothers = proven(token(bound(STRANGER)), key=STRANGER)  # may be called the same
    assert [passes(world, *each) for each in (again, anothers, anothers)] == [True, True, False]


def test_what_is_remembered_says_nothing_of_who_proved_what() -> None:
    spent = Spent()
    World(proving=proof_kit.proving(spent)).ask(*proven(token(bound()), claims={"jti": "canary"}))
    ((tenant, kept),) = spent.seen
    assert tenant == "acme"
    assert len(kept) == 32
    assert not {"canary", "alice"} & {kept}


@pytest.mark.parametrize(
    ("claims", "error"), ((bound(), OSError()), (bound(), RuntimeError("full")))
)
def test_where_it_cannot_be_known_nobody_passes(
    claims: dict[str, object], error: Exception
) -> None:
    world = World(proving=proof_kit.proving(Spent(error=error)))
    with pytest.raises(AuthUnavailable) as caught:
        world.ask(*proven(token(claims)))
    assert caught.value.reason is Unavailable.PROOFS
    world.ask(bearer(token()))  # who proves nothing is not asked for


def test_what_is_refused_for_anything_else_is_not_remembered() -> None:
    spent = Spent()
    made = proof_kit.proving(spent)
    good = token(bound())
    for world, headers in (
        (World(proving=made), proven(good, claims={"htm": "GET"})),
        (World(proving=made), proven(good, key=STRANGER)),
        (World(proving=made), proven(good[:-4] + "AAAA")),
        (World(proving=made), proven(token({**bound(), "exp": 1}))),
        (World(proving=made), proven(token({**bound(), "org": DROP}))),
        (World(proving=made, revoked="token"), proven(good)),
        (World(proving=made, rule=NONCED), proven(good)),
    ):
        with pytest.raises(AuthDenied):
            world.ask(*headers)
    with pytest.raises(Suspended):
        World(proving=made, revoked="tenant_suspended").ask(*proven(good))
    assert spent.seen == set()


def test_an_operator_proves_as_anybody() -> None:
    spent = Spent()
    who = World(proving=proof_kit.proving(spent)).ask(
        *proven(token({**bound(), "org": DROP, "roles": ["operator"]}))
    )
    assert who.tenant is None
    assert {tenant for tenant, _ in spent.seen} == {""}


# --- nonces


def test_who_proved_all_else_is_given_the_nonce_that_is_missing() -> None:
    world = World(rule=NONCED)
    raw = token(bound())
    for claims in ({}, {"nonce": "made up"}, {"nonce": "ü"}):
        why = denied(world, *proven(raw, claims=claims))
        assert (why.reason, why.tenant) == (Denied.PROOF_NONCE, "acme")
        assert why.nonce == Nonces(digest).current(NOW_S)
    assert world.ask(*proven(raw, claims={"nonce": why.nonce})).user == "alice"


def test_nobody_else_is_given_one() -> None:
    raw = token(bound())
    for world, headers in (
        (World(rule=NONCED), proven(raw, key=STRANGER)),
        (World(rule=NONCED), proven(token({**bound(), "exp": 1}))),
        (World(rule=NONCED, revoked="token"), proven(raw)),
        (World(rule=NONCED), (bearer(raw),)),
    ):
        assert denied(world, *headers).nonce is None


@pytest.mark.parametrize(("after_s", "passes"), ((0, True), (NONCE_S, True), (2 * NONCE_S, False)))
def test_a_nonce_is_good_while_it_is_said_and_once_more(after_s: int, passes: bool) -> None:
    nonces = Nonces(digest)
    said = nonces.current(NOW_S)
    assert nonces.accepts(said, NOW_S + after_s) is passes
    assert not nonces.accepts(said, NOW_S - NONCE_S)
    assert not Nonces(lambda parts: digest([*parts, b"other key"])).accepts(said, NOW_S)


def test_the_longest_that_a_proof_passes_is_remembered() -> None:
    assert proving.REMEMBERED_S >= dpop.PAST_S + dpop.FUTURE_S


# --- what is told


def test_what_is_wrong_with_a_proof_is_found_before_the_token_is_looked_at() -> None:
    """So it may be told: it would be the same beside a token that never stood."""
    for shown in (proof("x", {"htm": "GET"}), "no proof", proof("x", header={"typ": "JWT"})):
        reasons = set()
        for raw in (token(bound()), token({**bound(), "exp": 1}), "not.a.token"):
            world = World(jwks=OSError())
            why = denied(world, (b"authorization", b"DPoP " + raw.encode()), dpop_header(shown))
            reasons.add(why.reason)
            assert world.fetches == 0
        assert len(reasons) == 1
        assert reasons <= OF_THE_PROOF


def test_what_is_found_with_the_token_is_no_fault_of_the_proof() -> None:
    told = {
        denied(World(), *proven(token(bound()), key=STRANGER)).reason,
        denied(World(), *proven(token())).reason,
        denied(World(), *proven(token({**bound(), "exp": 1}))).reason,
        denied(World(revoked="token"), *proven(token(bound()))).reason,
    }
    assert not told & OF_THE_PROOF
    assert not {Denied.PROOF_REPLAYED, Denied.PROOF_NONCE, Denied.UNBOUND_TOKEN} & OF_THE_PROOF
