"""Bound tokens through the whole house: what is answered, what is told to whom, what is recorded (RFC 9449)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from executor.echo import EchoExecutor
from policies.facts import Role
from security.dev_issuer import RULE, open_dev_issuer
from security.dpop import Asked
from security.failures import Denied
from security.jwks import thumbprint
from security.tokens import Binding
from tenants.tempo.proofs import MemoryProofs
from tests.gateway.inhouse import CHAT, Answered, Caller, Inhouse, chat_body
from tests.gateway.test_line import Hold, lived
from tests.security import proof_kit
from tests.security.proof_kit import HOLDER, STRANGER

ME = "/v1/me"
Story = Callable[[Inhouse], Awaitable[None]]
_ids = count(1)
FORWARDED = (
    (b"x-forwarded-host", b"evil.example"),
    (b"x-forwarded-proto", b"https"),
    (b"x-original-host", b"evil.example"),
    (b"forwarded", b"host=evil.example;proto=https"),
)


def bound_token(home: Inhouse, key: proof_kit.Key | None = HOLDER, **claims: object) -> str:
    said: dict[str, object] = {"tenant": "acme", "user": "alice", "jti": "bound-1", **claims}
    jkt = None if key is None else thumbprint(proof_kit.jwk(key))
    issuer = open_dev_issuer(home.folder)
    return issuer.mint(now_s=now_s(), ttl_s=600, bound_to=jkt, **said)  # type: ignore[arg-type]


def now_s() -> int:
    return int(time.time())


def proven(
    home: Inhouse,
    method: str = "GET",
    path: str = ME,
    *,
    token: str | None = None,
    claims: Mapping[str, object] | None = None,
    key: proof_kit.Key = HOLDER,
    url: str = "http://test",
    admin: bool = False,
    more: tuple[tuple[bytes, bytes], ...] = (),
) -> Caller:
    raw = token or bound_token(home)
    shown = proof_kit.proof(
        raw,
        {"jti": f"p-{next(_ids)}", **(claims or {})},
        key=key,
        asked=Asked(method, path, "test"),
        url=url,
        now_s=now_s(),
    )
    headers = ((b"authorization", b"DPoP " + raw.encode()), (b"dpop", shown.encode()), *more)
    return Caller(home.admin if admin else home.public, None, headers)


def test_a_proven_token_is_answered_as_a_plain_one(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        plain = await home.caller().get(ME)
        assert (await proven(home).get(ME)).json()["user"] == plain.json()["user"]
        answer = await proven(home, "POST", CHAT).chat()
        assert answer.status == 200
        model = "/v1/models/org%2Fname"
        assert (await proven(home, path=model).get(model)).error["code"] == "model_not_found"
        assert (await proven(home).get(ME, "a=b")).status == 200
        operator = bound_token(home, tenant=None, roles=(Role.OPERATOR,))
        status = "/v1/admin/status"
        asked = proven(home, path=status, token=operator, admin=True)
        assert (await asked.get(status)).status == 200
        assert (await asked.get(status)).status == 401

    lived(tmp_path, story)


def test_one_body_for_all_and_a_header_that_tells_no_more_than_the_request_shows(
    tmp_path: Path,
) -> None:
    async def story(home: Inhouse) -> None:
        raw, spent = bound_token(home), proven(home)
        assert (await spent.get(ME)).status == 200
        scheme = (b"authorization", b"DPoP " + raw.encode())
        bare = Caller(home.public, None, (scheme,))
        gone = bound_token(home, jti="gone")
        await home.operator().post("/v1/admin/tokens/revoke", {"token_id": "gone"})
        by_itself, with_token = "invalid_dpop_proof", "invalid_token"
        cases: tuple[tuple[Caller, str, Denied], ...] = (
            (bare, by_itself, Denied.PROOF_MISSING),
            (replace(bare, more=(scheme, (b"dpop", b"x"))), by_itself, Denied.PROOF_SHAPE),
            (proven(home, claims={"htm": "POST"}), by_itself, Denied.PROOF_METHOD),
            (proven(home, path=CHAT), by_itself, Denied.PROOF_URL),
            (proven(home, claims={"iat": 1}), by_itself, Denied.PROOF_TIME),
            (proven(home, claims={"ath": "x"}), by_itself, Denied.PROOF_TOKEN),
            (proven(home, key=STRANGER), with_token, Denied.PROOF_BINDING),
            (proven(home, token=bound_token(home, None)), with_token, Denied.PROOF_STRAY),
            (proven(home, token=raw + "x"), with_token, Denied.TOKEN_ENCODING),
            (proven(home, token=gone), with_token, Denied.REVOKED),
            (spent, with_token, Denied.PROOF_REPLAYED),
            (Caller(home.public, raw), "", Denied.BOUND_TOKEN),
            (
                Caller(home.public, home.tokens["acme/alice"], spent.more[1:]),
                "",
                Denied.PROOF_STRAY,
            ),
            (home.caller(None), "", Denied.MISSING),
        )
        bodies = set()
        for caller, said, _ in cases:
            answer = await caller.get(ME)
            assert answer.status == 401
            assert answer.headers["x-should-retry"] == "false"
            assert "dpop-nonce" not in answer.headers
            bodies.add(answer.body)
            challenge = answer.headers["www-authenticate"]
            if said:
                assert challenge == f'DPoP error="{said}", algs="ES256 EdDSA Ed25519"'
            else:
                assert challenge == 'Bearer error="invalid_token"'
        assert len(bodies) == 1
        records = [each for each in home.audited() if each["kind"] == "auth.denied"]
        assert [each["reason"] for each in records] == [why.value for _, _, why in cases]
        replayed = records[10]
        assert (replayed["tenant"], replayed["credential_id"]) == ("acme", "bound-1")

    lived(tmp_path, story)


def test_two_proofs_are_a_request_that_reads_two_ways(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        caller = proven(home)
        twice = replace(caller, more=(*caller.more, caller.more[1]))
        answer = await twice.get(ME)
        assert (answer.status, answer.error["code"]) == (400, "duplicate_header")
        assert (await caller.get(ME)).status == 200

    lived(tmp_path, story)


def test_what_was_forwarded_says_nothing_of_where_we_are(tmp_path: Path) -> None:
    """Only the configuration does: behind TLS, and below a path."""

    async def story(home: Inhouse) -> None:
        for url, status in (
            ("https://llm.example.com", 200),
            ("https://example.org/llm", 200),
            ("https://example.org", 401),
            ("https://evil.example", 401),
            ("http://test", 401),
        ):
            assert (await proven(home, url=url, more=FORWARDED).get(ME)).status == status

    lived(tmp_path, story, urls=("https://llm.example.com", "https://example.org/llm"))


def test_without_a_configured_url_it_is_the_host_by_either_scheme(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        for url, status in (
            ("http://test", 200),
            ("https://test", 200),
            ("https://test:8443", 401),
            ("https://evil.example", 401),
        ):
            assert (await proven(home, url=url, more=FORWARDED).get(ME)).status == status

    lived(tmp_path, story)


def test_a_required_proof_lets_no_plain_token_in(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        assert (await home.caller().get(ME)).status == 401
        assert (await proven(home).get(ME)).status == 200

    lived(tmp_path, story, issuer=replace(RULE, binding=Binding.REQUIRED))


def test_a_nonce_is_told_to_who_lacks_it_and_then_good(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        refused = await proven(home).get(ME)
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith('DPoP error="use_dpop_nonce"')
        nonce = refused.headers["dpop-nonce"]
        assert (await proven(home, claims={"nonce": nonce}).get(ME)).status == 200
        stranger = await proven(home, key=STRANGER).get(ME)
        assert "dpop-nonce" not in stranger.headers

    lived(tmp_path, story, issuer=replace(RULE, nonce=True))


def test_a_retry_by_its_key_has_a_proof_of_its_own(tmp_path: Path) -> None:
    """Attached to what runs, told again when it is done, and the same principal with a plain token."""

    async def story(home: Inhouse) -> None:
        key = ((b"idempotency-key", b"one-retry-of-a-page"),)
        body = chat_body(stream=True)
        first = proven(home, "POST", CHAT, more=key).start("POST", CHAT, body)
        await first.until(lambda each: bool(each.parts))
        second = proven(home, "POST", CHAT, more=key).start("POST", CHAT, body)
        hold.opened.set()
        told: list[Answered] = [await first.end(), await second.end()]
        told.append(await proven(home, "POST", CHAT, more=key).post(CHAT, body))
        told.append(await replace(home.caller(), more=key).post(CHAT, body))
        assert [each.status for each in told] == [200] * 4
        assert len({each.body for each in told}) == 1
        assert told[2].headers["idempotent-replayed"] == "true"
        assert told[3].headers["idempotent-replayed"] == "true"

    hold = Hold(1)
    lived(tmp_path, story, echo=EchoExecutor(gate=hold))


@pytest.mark.parametrize("of_tenant_max", (0, 1))
def test_where_used_proofs_cannot_be_remembered_who_proves_waits(
    of_tenant_max: int, tmp_path: Path
) -> None:
    async def story(home: Inhouse) -> None:
        answers = [await proven(home).get(ME) for _ in range(2)]
        for answer in answers[of_tenant_max:]:
            assert (answer.status, answer.error["code"]) == (503, "auth_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        assert (await home.caller().get(ME)).status == 200
        reasons = [each["reason"] for each in home.audited() if each["kind"] == "auth.denied"]
        assert reasons == ["proofs"] * (2 - of_tenant_max)

    proofs = MemoryProofs(lambda: 0, 1000, of_tenant_max=of_tenant_max)
    lived(tmp_path, story, proofs=proofs)


def test_nothing_of_a_proof_is_written_anywhere(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        canary = {"jti": "CANARY-1", "nonce": "CANARY-2"}
        for claims in (
            canary,
            {**canary, "htm": "CANARY-3"},
            {**canary, "htu": "http://CANARY-4/"},
        ):
            answer = await proven(home, claims=claims).get(ME)
            assert b"CANARY" not in answer.body
            assert "CANARY" not in str(answer.headers)
        assert "CANARY" not in str(home.logged) + str(home.audited())
        metrics = await home.operator().get("/metrics")
        assert b"CANARY" not in metrics.body

    lived(tmp_path, story)
