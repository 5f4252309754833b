"""What comes by one `Idempotency-Key`: done once, told to whoever may hear it, and to nobody else
(A10 of SECURITY.md §4; M14, the invariant of MONEY.md §1)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RULES = "policies/idempotency.py"
_RULED = "tests/policies/test_idempotency.py::"
_ROWS = "tenants/idempotency_rows.py"
_KEPT = "tests/tenants/test_idempotency.py::"
_ONCE = "gateway/api/once.py"
_ASKED = "tests/gateway/test_once.py::"
_CHANGED = "tests/gateway/test_once_changes.py::"

MUTANTS = (
    *(
        Mutant(
            f"kept_key_without_the_{name}",
            "A10",
            "gateway/idempotency.py",
            "parts = (who.tenant, who.issuer, who.user, api_key, route, key)",
            f"parts = ({rest})",
            "tests/gateway/test_idempotency.py::test_a_key_that_is_kept_is_of_all_that_it_belongs_to",
        )
        for name, rest in (
            ("tenant", "who.issuer, who.user, api_key, route, key"),
            ("issuer", "who.tenant, who.user, api_key, route, key"),
            ("user", "who.tenant, who.issuer, api_key, route, key"),
            ("api_key", "who.tenant, who.issuer, who.user, route, key"),
            ("route", "who.tenant, who.issuer, who.user, api_key, key"),
        )
    ),
    Mutant(
        "any_body_by_a_key",
        "A10",
        _RULES,
        "if not found.same_body:",
        "if False:",
        _RULED
        + "test_another_request_by_a_key_that_stands_for_something_is_refused_and_never_answered",
    ),
    Mutant(
        "whatever_lapsed_runs_again",
        "M14",
        _RULES,
        "return found.expired or (found.state is State.RUNNING and found.billed is Billed.NOTHING)",
        "return found.expired or found.state is State.RUNNING",
        _RULED + "test_what_may_have_been_billed_is_never_run_again_within_its_day",
    ),
    Mutant(
        "what_was_billed_leaves_its_key_free",
        "M14",
        _RULES,
        "return Ending.CLOSE if work.spent else Ending.FREE",
        "return Ending.FREE",
        _ASKED + "test_what_nobody_comes_back_for_is_ended_billed_and_not_run_again",
    ),
    Mutant(
        "claimed_in_memory_alone",
        "M14",
        "gateway/runs.py",
        "found = await self.keys.claim(run.claim)",
        "found = Found(Verdict.RUN, run.claim.request_id)",
        _ASKED + "test_a_key_is_durable_before_anything_is_held",
    ),
    Mutant(
        "held_by_a_key_that_was_lost",
        "M14",
        "tenants/book.py",
        "lost = lost_claims(conn, asks)",
        "lost = frozenset[str]()",
        _ASKED + "test_a_gateway_that_was_away_too_long_holds_nothing",
    ),
    Mutant(
        "told_again_to_who_lost_the_right",
        "A10",
        _ONCE,
        "self._check(entry, kept.basis, found.request_id)",
        "pass",
        _CHANGED + "test_who_may_not_read_the_document_any_more_hears_that_there_is_none",
    ),
    Mutant(
        "read_along_without_the_right",
        "A10",
        _ONCE,
        "self._check(entry, run.doing.basis, run.claim.request_id)",
        "pass",
        "tests/gateway/test_once_streams.py::test_a_token_that_may_not_read_the_document_does_not_read_along",
    ),
    Mutant(
        "answers_sealed_for_any_key",
        "A10",
        "gateway/kept.py",
        "Place(SealPurpose.RESULT, tenant, digest, 1)",
        'Place(SealPurpose.RESULT, tenant, "", 1)',
        _CHANGED + "test_an_answer_put_in_anothers_place_is_not_told",
    ),
    Mutant(
        "secrets_kept_as_answers",
        "P12",
        "gateway/api/administration/call.py",
        "entry.doing.secret = self.secret",
        "pass",
        _CHANGED + "test_a_key_is_made_once_and_its_secret_kept_nowhere",
    ),
    Mutant(
        "sweep_frees_what_runs",
        "M14",
        _ROWS,
        "or_(_T.c.state == State.DONE.value, _T.c.lease_until_ms <= now_ms),",
        "or_(_T.c.state != '', _T.c.lease_until_ms <= now_ms),",
        _KEPT + "test_what_runs_is_not_forgotten_however_old",
    ),
    Mutant(
        "whoever_is_late_ends_anothers_claim",
        "M14",
        _ROWS,
        "        _T.c.request_id == request_id,\n",
        "",
        _KEPT + "test_what_is_closed_says_why_and_what_is_freed_is_gone",
    ),
    Mutant(
        "shredding_leaves_answers",
        "P12",
        "gateway/api/administration/secrets.py",
        "await house.runs.keys.forget(tenant)",
        "pass",
        _CHANGED + "test_after_shredding_nothing_is_there_and_nothing_is_done_by_a_key",
    ),
    Mutant(
        "looking_for_an_answer_is_free",
        "M14",
        _ONCE,
        "if self.endpoint.rated and entry.who.tenant is not None:",
        "if False:",
        _ASKED + "test_who_is_over_the_rate_makes_the_database_write_nothing",
    ),
)
