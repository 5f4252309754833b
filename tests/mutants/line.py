"""The rest of the line: money, retries, who may see a request, what may run at all, how it is installed
(P14, P16–P18; A10 of SECURITY.md §4; M1 to M15, the invariants of MONEY.md)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BOOK = "tests/tenants/test_book.py::"
_LEDGER = "tenants/ledger.py"
_HASHES = "tests/test_dev.py::test_the_locks_pin_every_package_by_hash_and_agree"
_IMPORTS = "tests/test_architecture.py::test_the_arrows_and_the_doors"

MUTANTS = (
    Mutant(
        "nothing_is_reserved",
        "M3",
        _LEDGER,
        "self._move(row, held=fitted.amount_nano_usd)",
        "self._move(row, held=0)",
        _BOOK + "test_two_hundred_at_once_against_a_budget_for_37",
    ),
    Mutant(
        "parent_budget_is_not_asked",
        "M12",
        _LEDGER,
        "[self._windows.account(budget) for budget in budgets]",
        "[self._windows.account(budget) for budget in budgets[:1]]",
        _BOOK + "test_a_parent_that_is_spent_leaves_no_partial_hold",
    ),
    Mutant(
        "settled_and_still_held",
        "M6",
        _LEDGER,
        'self._leave(row, SETTLED, total, held=-row["amount"], spent=total)',
        "self._leave(row, SETTLED, total, held=0, spent=total)",
        _BOOK + "test_hold_settle_and_the_books_of_a_clerk",
    ),
    Mutant(
        "executor_runs_past_what_was_reserved",
        "M2",
        "gateway/lifecycle.py",
        "max_new_tokens=min(each.max_new_tokens, hold.output_tokens)",
        "max_new_tokens=each.max_new_tokens",
        "tests/gateway/test_line.py::test_an_open_ended_answer_is_cut_to_what_the_budget_affords",
    ),
    Mutant(
        "refused_by_the_budget_and_charged_to_the_rate",
        "M10",
        "gateway/lifecycle.py",
        "await unbroken(house.tempo.refund(case.request_id))",
        "await unbroken(house.tempo.release(case.request_id, 0))",
        "tests/gateway/test_line.py::test_what_the_budget_refuses_the_rate_gets_back",
    ),
    Mutant(
        "equal_users_of_two_tenants_share_an_account",
        "M13",
        "tenants/scopes.py",
        "return _spell(dims.tenant, dims.issuer, dims.user)",
        "return _spell(dims.issuer, dims.user)",
        "tests/tenants/test_scopes.py::test_no_two_people_share_a_spelling",
    ),
    *(
        Mutant(
            f"retry_key_without_the_{name}",
            "A10",
            "gateway/idempotency.py",
            'return of((who.tenant or "", who.issuer, who.user, route, key))',
            f"return of(({rest}))",
            "tests/gateway/test_idempotency.py::test_a_key_is_of_all_that_it_belongs_to",
        )
        for name, rest in (
            ("tenant", "who.issuer, who.user, route, key"),
            ("issuer", 'who.tenant or "", who.user, route, key'),
            ("user", 'who.tenant or "", who.issuer, route, key'),
            ("route", 'who.tenant or "", who.issuer, who.user, key'),
        )
    ),
    Mutant(
        "requests_are_everybodys_to_see",
        "P8",
        "policies/access.py",
        "return _within(principal, owner.tenant, Role.TENANT_ADMIN)\n",
        "return principal.tenant == owner.tenant\n",
        "tests/policies/test_access.py::test_a_request_is_its_owners_and_its_tenants_administrators",
    ),
    Mutant(
        "who_leaves_leaves_it_running",
        "P17",
        "gateway/answer.py",
        "    async def __aexit__(self, *_: object) -> None:\n        await unbroken(self._leave())\n",
        "    async def __aexit__(self, *_: object) -> None:\n        pass\n",
        "tests/gateway/test_answer.py::test_leaving_while_interrupted_still_frees_every_turn",
    ),
    Mutant(
        "unscalable_numbers_reach_the_sampler",
        "P14",
        "executor/sequence.py",
        "if not (isfinite(sampling.temperature) and sampling.temperature >= 0):",
        "if sampling.temperature < 0:",
        "tests/executor/test_engine.py::test_what_can_never_fit_is_refused_at_once_and_told_why",
    ),
    Mutant(
        "wire_reads_pickles",
        "P16",
        "executor/wire.py",
        "import msgspec\n",
        "import pickle\n\nimport msgspec\n",
        _IMPORTS,
    ),
    Mutant(
        "gateway_evaluates_what_it_is_sent",
        "P16",
        "gateway/strict_json.py",
        "from gateway.errors import",
        "eval('None')\nfrom gateway.errors import",
        _IMPORTS,
    ),
    Mutant(
        "tool_without_a_hash",
        "P18",
        "deploy/locks/runtime.txt",
        "hypercorn==0.18.0 \\\n    --hash=sha256:225e268f2c1c2f28f6d8f6db8f40cb8c992963610c5725e13ccfcddccb24b1cd \\\n"
        "    --hash=sha256:d63267548939c46b0247dc8e5b45a9947590e35e64ee73a23c074aa3cf88e9da\n",
        "hypercorn==0.18.0\n",
        _HASHES,
    ),
    Mutant(
        "installed_without_hashes",
        "P18",
        "deploy/environment.py",
        '["install", "--require-hashes", "-r", str(lock)]',
        '["install", "-r", str(lock)]',
        "tests/test_dev.py::test_what_is_installed_is_held_to_its_hashes",
    ),
)
