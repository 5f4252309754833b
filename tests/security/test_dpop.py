"""A proof read by itself: each rule of RFC 9449 §4.3 broken alone, and whatever a stranger may send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from security import dpop
from security.dpop import Asked, normal_url, targets
from security.failures import OF_THE_PROOF, AuthDenied, Denied
from security.jwks import BadKeySet, load_key, thumbprint
from security.strict import base64url, to_base64url
from tests.security.kit import DROP, NOW_S, ec_jwk, ed_jwk, rsa_jwk
from tests.security.proof_kit import (
    ASKED,
    ED_HOLDER,
    HOLDER,
    PATH,
    STRANGER,
    URL,
    Key,
    jwk,
    proof,
    proving,
    signed,
)

TOKEN = "header.claims.signature"


def judged(
    raw: str | bytes,
    *,
    token: str = TOKEN,
    asked: Asked = ASKED,
    now_s: int = NOW_S,
    urls: tuple[str, ...] = (URL,),
    since_s: int | None = None,
) -> dpop.Proof:
    data = raw if isinstance(raw, bytes) else raw.encode("latin-1")
    return proving(urls=urls, since_s=since_s).judge(data, token, asked, now_s)


def reason(raw: str | bytes, **how: object) -> Denied:
    with pytest.raises(AuthDenied) as caught:
        judged(raw, **how)  # type: ignore[arg-type]  # passed on as it came
    assert caught.value.reason in OF_THE_PROOF
    return caught.value.reason


# --- the RFC's own

RFC_PROOF = (
    "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6IkVDIiwieCI6Imw4dEZyaHgtMzR0VjNo"
    "UklDUkRZOXpDa0RscEJoRjQyVVFVZldWQVdCRnMiLCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERW"
    "clUwQ2R2R1JEQSIsImNydiI6IlAtMjU2In19.eyJqdGkiOiJlMWozVl9iS2ljOC1MQUVCIiwiaHRtIjoiR0VUIiwiaHR1"
    "IjoiaHR0cHM6Ly9yZXNvdXJjZS5leGFtcGxlLm9yZy9wcm90ZWN0ZWRyZXNvdXJjZSIsImlhdCI6MTU2MjI2MjYxOCwi"
    "YXRoIjoiZlVIeU8ycjJaM0RaNTNFc05yV0JiMHhXWG9hTnk1OUlpS0NBcWtzbVFFbyJ9.2oW9RP35yRqzhrtNP86L-Ey7"
    "1EOptxRimPPToA1plemAgR6pxHF8y6-yqyVnmcw6Fy1dqd-jfxSYoMxhAJpLjA"
)
RFC_TOKEN = "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU"
RFC_ASKED = Asked("GET", "/protectedresource", "resource.example.org")
RFC_THUMBPRINT = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
RFC_7638 = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}


def test_the_example_of_section_7_1() -> None:
    how = {"token": RFC_TOKEN, "asked": RFC_ASKED, "now_s": 1562262618, "urls": ()}
    found = judged(RFC_PROOF, **how)  # type: ignore[arg-type]  # of several types
    assert found.thumbprint == RFC_THUMBPRINT
    assert (found.id, found.nonce) == ("e1j3V_bKic8-LAEB", None)
    assert reason(RFC_PROOF, **{**how, "token": "another"}) is Denied.PROOF_TOKEN
    assert reason(RFC_PROOF, **{**how, "now_s": 1562262618 + 61}) is Denied.PROOF_TIME


def test_the_thumbprint_of_rfc_8037() -> None:
    assert thumbprint(RFC_7638) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    assert thumbprint({**RFC_7638, "kid": "x", "use": "sig"}) == thumbprint(RFC_7638)


# --- what passes


@pytest.mark.parametrize("key", (HOLDER, ED_HOLDER))
def test_a_good_proof_is_of_its_key(key: Key) -> None:
    found = judged(proof(TOKEN, {"nonce": "n"}, key=key))
    assert found.thumbprint == thumbprint(jwk(key))
    assert (found.id, found.nonce) == ("p-1", "n")


def test_ed25519_by_the_name_of_rfc_9864() -> None:
    assert judged(proof(TOKEN, header={"alg": "Ed25519"}, key=ED_HOLDER)).alg == "Ed25519"


def test_claims_that_we_do_not_know_change_nothing() -> None:
    judged(proof(TOKEN, {"iss": "x", "exp": 1, "aud": ["y"]}))


# --- each rule alone

HEADERS: Mapping[str, tuple[Mapping[str, object], Denied]] = {
    "typ JWT": ({"typ": "JWT"}, Denied.PROOF_HEADER),
    "typ of a token": ({"typ": "at+jwt"}, Denied.PROOF_HEADER),
    "typ in capitals": ({"typ": "DPOP+JWT"}, Denied.PROOF_HEADER),
    "typ null": ({"typ": None}, Denied.PROOF_HEADER),
    "no typ": ({"typ": DROP}, Denied.PROOF_HEADER),
    "no alg": ({"alg": DROP}, Denied.PROOF_HEADER),
    "no jwk": ({"jwk": DROP}, Denied.PROOF_HEADER),
    "kid": ({"kid": "k"}, Denied.PROOF_HEADER),
    "crit": ({"crit": ["b64"], "b64": False}, Denied.PROOF_HEADER),
    "jku": ({"jku": "https://evil.example/"}, Denied.PROOF_HEADER),
    "x5c": ({"x5c": ["x"]}, Denied.PROOF_HEADER),
    "alg none": ({"alg": "none"}, Denied.PROOF_ALGORITHM),
    "alg NONE": ({"alg": "nOnE"}, Denied.PROOF_ALGORITHM),
    "symmetric": ({"alg": "HS256"}, Denied.PROOF_ALGORITHM),
    "RSA": ({"alg": "RS256"}, Denied.PROOF_ALGORITHM),
    "another curve": ({"alg": "ES384"}, Denied.PROOF_ALGORITHM),
    "alg a list": ({"alg": ["ES256"]}, Denied.PROOF_ALGORITHM),
    "alg null": ({"alg": None}, Denied.PROOF_ALGORITHM),
    "jwk a list": ({"jwk": [jwk()]}, Denied.PROOF_KEY),
    "jwk null": ({"jwk": None}, Denied.PROOF_KEY),
    "jwk a name": ({"jwk": "ec"}, Denied.PROOF_KEY),
    "jwk empty": ({"jwk": {}}, Denied.PROOF_KEY),
    "private": ({"jwk": jwk(d="AQ")}, Denied.PROOF_KEY),
    "symmetric key": ({"jwk": {"kty": "oct", "k": "AQ"}}, Denied.PROOF_KEY),
    "k beside": ({"jwk": jwk(k="AQ")}, Denied.PROOF_KEY),
    "for encryption": ({"jwk": jwk(use="enc")}, Denied.PROOF_KEY),
    "to sign with": ({"jwk": jwk(key_ops=["sign"])}, Denied.PROOF_KEY),
    "for another alg": ({"jwk": jwk(alg="ES384")}, Denied.PROOF_KEY),
    "of another type": ({"jwk": jwk(ED_HOLDER)}, Denied.PROOF_KEY),
    "an RSA key": ({"jwk": rsa_jwk()}, Denied.PROOF_KEY),
    "P-384": ({"jwk": jwk(crv="P-384")}, Denied.PROOF_KEY),
    "off the curve": ({"jwk": {**jwk(), "y": jwk()["x"]}}, Denied.PROOF_KEY),
    "a short number": ({"jwk": {**jwk(), "x": "AQ"}}, Denied.PROOF_KEY),
    "a padded number": ({"jwk": {**jwk(), "x": f"{jwk()['x']}="}}, Denied.PROOF_KEY),
    "no y": ({"jwk": {n: v for n, v in jwk().items() if n != "y"}}, Denied.PROOF_KEY),
    "a number for text": ({"jwk": {**jwk(), "x": 1}}, Denied.PROOF_KEY),
    "a long number": ({"jwk": {**jwk(), "x": "A" * 2000}}, Denied.PROOF_KEY),
    "kty a list": ({"jwk": {**jwk(), "kty": ["EC"]}}, Denied.PROOF_KEY),
    "another's key": ({"jwk": jwk(STRANGER)}, Denied.PROOF_SIGNATURE),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_breaks_one_rule(name: str) -> None:
    changes, why = HEADERS[name]
    assert reason(proof(TOKEN, header=changes)) is why


def test_a_genuine_rsa_proof_is_none_of_ours() -> None:
    assert reason(proof(TOKEN, key=None)) is Denied.PROOF_ALGORITHM


CLAIMS: Mapping[str, tuple[Mapping[str, object], Denied]] = {
    "htm of another": ({"htm": "GET"}, Denied.PROOF_METHOD),
    "htm in small": ({"htm": "post"}, Denied.PROOF_METHOD),
    "htm long": ({"htm": "POST" * 5}, Denied.PROOF_CLAIM),
    "htm a list": ({"htm": ["POST"]}, Denied.PROOF_CLAIM),
    "no htm": ({"htm": DROP}, Denied.PROOF_CLAIM),
    "another path": ({"htu": URL + "/v1/completions"}, Denied.PROOF_URL),
    "a longer path": ({"htu": URL + PATH + "/"}, Denied.PROOF_URL),
    "another host": ({"htu": "https://evil.example" + PATH}, Denied.PROOF_URL),
    "a host below": ({"htu": "https://llm.example.com.evil.example" + PATH}, Denied.PROOF_URL),
    "a host before": ({"htu": "https://evil.example/llm.example.com" + PATH}, Denied.PROOF_URL),
    "user information": ({"htu": "https://llm.example.com@evil.example" + PATH}, Denied.PROOF_URL),
    "another scheme": ({"htu": "http://llm.example.com" + PATH}, Denied.PROOF_URL),
    "another port": ({"htu": "https://llm.example.com:8443" + PATH}, Denied.PROOF_URL),
    "a path alone": ({"htu": PATH}, Denied.PROOF_URL),
    "dots": ({"htu": URL + "/v1/models/.." + PATH.removeprefix("/v1")}, Denied.PROOF_URL),
    "the path in capitals": ({"htu": URL + PATH.upper()}, Denied.PROOF_URL),
    "a space": ({"htu": URL + PATH + " "}, Denied.PROOF_URL),
    "a newline": ({"htu": URL + PATH + "\n"}, Denied.PROOF_URL),
    "a broken escape": ({"htu": URL + PATH + "%2"}, Denied.PROOF_URL),
    "letters beyond ASCII": ({"htu": "https://llm.example.cöm" + PATH}, Denied.PROOF_URL),
    "htu long": ({"htu": URL + PATH + "?" + "x" * 2048}, Denied.PROOF_CLAIM),
    "htu a list": ({"htu": [URL + PATH]}, Denied.PROOF_CLAIM),
    "no htu": ({"htu": DROP}, Denied.PROOF_CLAIM),
    "too old": ({"iat": NOW_S - 61}, Denied.PROOF_TIME),
    "too new": ({"iat": NOW_S + 6}, Denied.PROOF_TIME),
    "before time": ({"iat": -1}, Denied.PROOF_TIME),
    "iat a float": ({"iat": float(NOW_S)}, Denied.PROOF_CLAIM),
    "iat text": ({"iat": str(NOW_S)}, Denied.PROOF_CLAIM),
    "iat true": ({"iat": True}, Denied.PROOF_CLAIM),
    "no iat": ({"iat": DROP}, Denied.PROOF_CLAIM),
    "jti empty": ({"jti": ""}, Denied.PROOF_CLAIM),
    "jti long": ({"jti": "x" * 257}, Denied.PROOF_CLAIM),
    "jti a number": ({"jti": 1}, Denied.PROOF_CLAIM),
    "no jti": ({"jti": DROP}, Denied.PROOF_CLAIM),
    "ath of another": ({"ath": dpop.token_hash("another")}, Denied.PROOF_TOKEN),
    "ath padded": ({"ath": dpop.token_hash(TOKEN) + "="}, Denied.PROOF_CLAIM),
    "ath empty": ({"ath": ""}, Denied.PROOF_CLAIM),
    "no ath": ({"ath": DROP}, Denied.PROOF_CLAIM),
    "nonce null": ({"nonce": None}, Denied.PROOF_CLAIM),
    "nonce a number": ({"nonce": 1}, Denied.PROOF_CLAIM),
    "nonce long": ({"nonce": "x" * 257}, Denied.PROOF_CLAIM),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_that_breaks_one_rule(name: str) -> None:
    changes, why = CLAIMS[name]
    assert reason(proof(TOKEN, changes)) is why


@pytest.mark.parametrize("at_s", (-60, 0, 5))
def test_the_minute_in_which_a_proof_passes(at_s: int) -> None:
    judged(proof(TOKEN, {"iat": NOW_S + at_s}))


def test_what_was_made_before_this_process_began_is_not_taken_where_nothing_is_remembered() -> None:
    judged(proof(TOKEN, {"iat": NOW_S - 10}), since_s=NOW_S - 10)
    raw = proof(TOKEN, {"iat": NOW_S - 11})
    assert reason(raw, since_s=NOW_S - 10) is Denied.PROOF_TIME


def test_every_changed_signature_byte_is_refused() -> None:
    raw = proof(TOKEN)
    head, _, signature = raw.rpartition(".")
    data = base64url(signature)
    for at in range(len(data)):
        broken = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert reason(f"{head}.{to_base64url(broken)}") is Denied.PROOF_SIGNATURE
    assert reason(f"{head}.{to_base64url(data[:-1])}") is Denied.PROOF_SIGNATURE
    other = proof(TOKEN, {"jti": "p-2"}).rpartition(".")[0]
    assert reason(f"{other}.{signature}") is Denied.PROOF_SIGNATURE


@pytest.mark.parametrize(
    "raw",
    (
        *("", ".", "..", "a.b", "a.b.c.d", "a.b.c", "é.b.c", "eyJ.eyJ.eyJ", "x" * 9000),
        *(f" {RFC_PROOF}", f"{RFC_PROOF} ", f"{RFC_PROOF}=", f"{RFC_PROOF}, {RFC_PROOF}"),
        RFC_PROOF.replace(".", "..", 1),
        proof(TOKEN, {"x": "y" * 8000}),
    ),
)
def test_what_is_no_compact_jws_of_8_kib(raw: str) -> None:
    assert reason(raw) is Denied.PROOF_SHAPE


@pytest.mark.parametrize(
    "body",
    (
        *(b"[]", b"1", b"null", b"{", b'{"jti":"a","jti":"b"}', b'{"iat":NaN}', b"\xef\xbb\xbf{}"),
        *(b'{"jti":"\\ud800"}', b'{"jti":"\\u0000"}', b'{"a":' + b"[" * 9 + b"]" * 9 + b"}"),
        b'{"iat":1e400}',
    ),
)
def test_header_and_claims_are_each_one_strict_json_object(body: bytes) -> None:
    head = json.dumps({"typ": "dpop+jwt", "alg": "ES256", "jwk": jwk()}).encode()
    assert reason(signed(head, body)) is Denied.PROOF_SHAPE
    assert reason(signed(body, b"{}")) is Denied.PROOF_SHAPE


# --- what a request is called outside


@pytest.mark.parametrize(
    ("text", "means"),
    (
        ("https://llm.example.com/v1/me", "https://llm.example.com/v1/me"),
        ("HTTPS://LLM.Example.COM:443/v1/me", "https://llm.example.com/v1/me"),
        ("http://h:80", "http://h/"),
        ("http://h:", "http://h/"),
        ("https://h:80/", "https://h:80/"),
        ("https://[::1]:8080/a", "https://[::1]:8080/a"),
        ("https://h/a?b=c#d", "https://h/a"),
        ("https://h#d", "https://h/"),
        ("https://h/%7euser/%2f/%C3%a4", "https://h/~user/%2F/%C3%A4"),
        ("https://h/%", None),
        ("https://h/%zz", None),
        ("ftp://h/", None),
        ("//h/a", None),
        ("https:///a", None),
        ("https://u@h/a", None),
        ("https://h/a b", None),
        ("https://h/\\a", None),
        ("https://h/ä", None),
        ("https://h:123456/", None),
        ("", None),
    ),
)
def test_one_spelling_of_a_url(text: str, means: str | None) -> None:
    assert normal_url(text) == means


def test_a_request_is_below_each_configured_url_or_else_under_its_own_host() -> None:
    assert targets(ASKED, (URL, "https://example.org/llm")) == (
        URL + PATH,
        "https://example.org/llm" + PATH,
    )
    assert set(targets(ASKED, ())) == {f"https://{ASKED.host}{PATH}", f"http://{ASKED.host}{PATH}"}
    model = Asked("GET", "/v1/models/org%2Fname", "llm.example.com:443")
    assert targets(model, ())[0] == "https://llm.example.com/v1/models/org%2Fname"
    assert targets(replace(model, host="no host"), ()) == ()


@pytest.mark.parametrize("htu", (None, "https://evil.example"))
def test_no_url_is_taken_for_a_request_without_a_host(htu: str | None) -> None:
    raw = proof(TOKEN, url=htu or URL)
    assert reason(raw, asked=replace(ASKED, host=""), urls=()) is Denied.PROOF_URL


def test_a_configured_url_counts_whatever_host_came() -> None:
    judged(proof(TOKEN), asked=replace(ASKED, host="inside:8080"))
    raw = proof(TOKEN, url="http://inside:8080")
    assert reason(raw, asked=replace(ASKED, host="inside:8080")) is Denied.PROOF_URL


def test_query_and_fragment_do_not_count() -> None:
    judged(proof(TOKEN, {"htu": URL + PATH + "?a=b#c"}))
    judged(proof(TOKEN, {"htu": "HTTPS://LLM.example.com:443" + PATH}))


# --- keys


@pytest.mark.parametrize("entry", (ec_jwk(), ed_jwk()))
def test_a_key_by_itself_is_read_as_in_a_set(entry: dict[str, object]) -> None:
    assert load_key(entry) is not None
    with pytest.raises(BadKeySet):
        load_key({**entry, "d": "AQ"})


@pytest.mark.parametrize(
    "entry",
    (
        {"kty": "RSA"},
        {"kty": "oct"},
        {},
        {"kty": 1},
        {**jwk(), "x": None},
        {**jwk(), "y": "x" * 129},
    ),
)
def test_a_thumbprint_is_of_few_short_texts(entry: dict[str, object]) -> None:
    with pytest.raises(BadKeySet):
        thumbprint(entry)


# --- anything


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.one_of(st.binary(max_size=400), st.text(alphabet="eyJ.-_A=", max_size=60).map(str.encode))
)
def test_any_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    assert reason(data) in OF_THE_PROOF


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
MEMBERS = ("typ", "alg", "jwk", "jti", "htm", "htu", "iat", "ath", "nonce", "kty", "crv", "x", "y")


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from(MEMBERS),
    st.one_of(JSON, st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=4)),
)
def test_any_value_in_any_member_is_refused_or_changes_nothing(name: str, value: object) -> None:
    """Genuinely signed, so that nothing is hidden behind the signature."""
    if name in {"typ", "alg", "jwk"}:
        raw = proof(TOKEN, header={name: value})
    elif name in {"kty", "crv", "x", "y"}:
        raw = proof(TOKEN, header={"jwk": {**jwk(), name: value}})
    else:
        raw = proof(TOKEN, {name: value})
    try:
        found = judged(raw)
    except AuthDenied:
        return
    assert found.thumbprint == thumbprint(jwk())
