"""Every way in which authentication fails, and the closed set of reasons that the audit log keeps.

    AuthFailure
    ├── AuthDenied        401, one body for every reason
    ├── AuthMalformed     400, the request names its credential in a way we refuse to interpret
    ├── AuthUnavailable   503, we cannot know, so nobody passes
    └── Suspended         403, only ever told to a caller who has proved who they are

Refuses to know HTTP.  `str()` of each is its reason: a word of ours, never text that a caller sent.
Source: SECURITY.md §4 (401t, 400r, J18–J20).
"""

from __future__ import annotations

from enum import StrEnum


class Denied(StrEnum):
    """Why a credential was refused.  For the audit log and metrics only; callers see one answer."""

    MISSING = "missing"
    SCHEME = "scheme"
    # the token as text
    TOKEN_TOO_LONG = "token_too_long"  # noqa: S105 — the name of a reason, no secret
    TOKEN_SHAPE = "token_shape"  # noqa: S105 — likewise
    TOKEN_ENCODING = "token_encoding"  # noqa: S105 — likewise
    TOKEN_JSON = "token_json"  # noqa: S105 — likewise
    HEADER_MEMBER = "header_member"
    # the token against its issuer's rule
    ISSUER = "issuer"
    ALGORITHM = "algorithm"
    TYPE = "type"
    KEY_ID = "key_id"
    SIGNATURE = "signature"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    TIMES = "times"
    AUDIENCE = "audience"
    SUBJECT = "subject"
    ID_TOKEN = "id_token"  # noqa: S105 — likewise
    BOUND_TOKEN = "bound_token"  # noqa: S105 — likewise
    UNBOUND_TOKEN = "unbound_token"  # noqa: S105 — likewise
    CLAIM = "claim"
    NO_TENANT = "no_tenant"
    OPERATOR_WITH_TENANT = "operator_with_tenant"
    # the proof of possession, read by itself (`OF_THE_PROOF`)
    PROOF_MISSING = "proof_missing"
    PROOF_SHAPE = "proof_shape"
    PROOF_HEADER = "proof_header"
    PROOF_ALGORITHM = "proof_algorithm"
    PROOF_KEY = "proof_key"
    PROOF_CLAIM = "proof_claim"
    PROOF_METHOD = "proof_method"
    PROOF_URL = "proof_url"
    PROOF_TIME = "proof_time"
    PROOF_TOKEN = "proof_token"  # noqa: S105 — likewise
    PROOF_SIGNATURE = "proof_signature"
    # the proof beside its credential
    PROOF_STRAY = "proof_stray"
    PROOF_BINDING = "proof_binding"
    PROOF_NONCE = "proof_nonce"
    PROOF_REPLAYED = "proof_replayed"
    # keys
    KEY_MALFORMED = "key_malformed"
    KEY_UNKNOWN = "key_unknown"
    KEY_EXPIRED = "key_expired"
    KEY_REVOKED = "key_revoked"
    # either
    REVOKED = "revoked"


OF_THE_PROOF = frozenset(
    {
        *(Denied.PROOF_MISSING, Denied.PROOF_SHAPE, Denied.PROOF_HEADER, Denied.PROOF_ALGORITHM),
        *(Denied.PROOF_KEY, Denied.PROOF_CLAIM, Denied.PROOF_METHOD, Denied.PROOF_URL),
        *(Denied.PROOF_TIME, Denied.PROOF_TOKEN, Denied.PROOF_SIGNATURE),
    }
)
"""What was found before the token was looked at: that may be told, since it says nothing of the token."""


class Malformed(StrEnum):
    """Why a request's credentials cannot be read without guessing."""

    TWO_CREDENTIALS = "two_credentials"
    TWO_PROOFS = "two_proofs"
    CREDENTIAL_IN_QUERY = "credential_in_query"


class Unavailable(StrEnum):
    """What we could not find out."""

    KEY_SET = "key_set"
    KEY_LOOKUP = "key_lookup"
    REVOCATIONS = "revocations"
    PROOFS = "proofs"


class AuthFailure(Exception):
    """Base of all of them."""


class AuthDenied(AuthFailure):
    """`tenant` and `credential_id` are set only where the credential was genuine (revoked, expired):
    what an unproven token claims is never recorded.  `nonce`: of a caller who has proved everything
    else, what the next proof must bear (RFC 9449 §9)."""

    def __init__(
        self,
        reason: Denied,
        *,
        tenant: str | None = None,
        credential_id: str | None = None,
        nonce: str | None = None,
    ) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.tenant = tenant
        self.credential_id = credential_id
        self.nonce = nonce


class AuthMalformed(AuthFailure):
    def __init__(self, reason: Malformed) -> None:
        super().__init__(reason.value)
        self.reason = reason


class AuthUnavailable(AuthFailure):
    def __init__(self, reason: Unavailable) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Suspended(AuthFailure):
    """The tenant is suspended; the caller is one of its own."""

    def __init__(self, tenant: str, *, credential_id: str | None = None) -> None:
        super().__init__("tenant_suspended")
        self.reason = "tenant_suspended"
        self.tenant = tenant
        self.credential_id = credential_id
