"""Registered texts: who may read them, at which version, what a withdrawal ends, what destroys them (P1, P6, P8, P12)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DECISION = "policies/scope/decision.py"
_DENIES = "tests/policies/scope/test_decision.py::test_each_single_reason_denies"
_TENANT_SECRETS = "security/keyring_tenants.py"
_SHREDDED = "tests/security/test_keyring_tenants.py::test_what_is_shredded_never_comes_back"
_REVOCATION = "tests/gateway/test_registered_revocation.py::"
_REGISTERED = "tests/gateway/test_registered.py::"

MUTANTS = (
    Mutant(
        "decision_by_any_version",
        "P6",
        _DECISION,
        "return bool(mine & same & live & names(known, principal))",
        "return bool(mine & live & names(known, principal))",
        _DENIES,
    ),
    Mutant(
        "decision_without_the_list",
        "P1",
        _DECISION,
        "return bool(mine & same & live & names(known, principal))",
        "return bool(mine & same & live)",
        _DENIES,
    ),
    Mutant(
        "decision_across_tenants",
        "P1",
        _DECISION,
        "return bool(mine & same & live & names(known, principal))",
        "return bool(same & live & names(known, principal))",
        _DENIES,
    ),
    Mutant(
        "decision_after_expiry",
        "P6",
        _DECISION,
        "return bool(mine & same & live & names(known, principal))",
        "return bool(mine & same & names(known, principal))",
        _DENIES,
    ),
    Mutant(
        "decision_outlives_the_right",
        "P6",
        _DECISION,
        "ends_ns = min([ends_ns, *(each for each in expiries if each is not None)])",
        "ends_ns = max([ends_ns, *(each for each in expiries if each is not None)])",
        "tests/policies/scope/test_decision.py::test_allowed_until_the_first_thing_ends",
    ),
    Mutant(
        "stale_policy_is_gone_by",
        "P15",
        _DECISION,
        "if not snapshot.read_ns <= now_ns < ends_ns:",
        "if now_ns < snapshot.read_ns:",
        _DENIES,
    ),
    Mutant(
        "policy_that_fails_allows",
        "P15",
        _DECISION,
        "return Deny(Reason.POLICY_ERROR)",
        "return Allow(_made(label, snapshot.id, now_ns + stale_ns_max))",
        _DENIES,
    ),
    Mutant(
        "anybody_makes_decisions",
        "P1",
        _DECISION,
        'raise TypeError("a Decision is made by decide() alone")',
        "pass",
        "tests/policies/scope/test_decision.py::test_there_is_no_other_way_to_make_one",
    ),
    Mutant(
        "equal_names_of_two_issuers_are_one",
        "P1",
        _DECISION,
        "person = (principal.issuer, principal.user) in acl.users",
        "person = principal.user in {user for _, user in acl.users}",
        _DENIES,
    ),
    Mutant(
        "refused_is_not_absent",
        "P8",
        "gateway/api/registered/call.py",
        "if Right.SEE not in rights or record is ABSENT:",
        "if record is ABSENT:",
        _REGISTERED + "test_what_is_not_for_somebody_looks_alike_by_every_route",
    ),
    Mutant(
        "absent_takes_fewer_steps",
        "P8",
        _DECISION,
        "    known = acl or _NOBODY\n",
        "    if acl is None:\n        return False\n    known = acl\n",
        _REGISTERED + "test_what_is_not_for_somebody_takes_the_same_steps",
    ),
    Mutant(
        "administrator_reads_what_is_registered",
        "P1",
        "policies/registered.py",
        "frozenset({Right.SEE, Right.READERS, Right.NARROW, Right.DELETE})",
        "frozenset({Right.SEE, Right.READERS, Right.NARROW, Right.DELETE, Right.TEXT})",
        "tests/policies/test_registered.py::test_rights_in_a_document",
    ),
    Mutant(
        "regrant_revives_the_old_version",
        "P6",
        "tenants/documents.py",
        "acl_version=old.acl_version + 1)",
        "acl_version=old.acl_version + (1 if new.readers.users < old.readers.users else -1))",
        _REVOCATION + "test_a_narrowed_list_ends_who_lost_by_it_and_answers_afterwards",
    ),
    Mutant(
        "expiry_by_the_wall_clock",
        "P6",
        "tenants/documents.py",
        "kept = known is not None and old is not None and old.expires_at_s == record.expires_at_s",
        "kept = False",
        "tests/tenants/test_documents.py::test_a_registry_reads_back_what_it_wrote_and_sees_what_another_wrote",
    ),
    Mutant(
        "revocation_is_answered_unacknowledged",
        "P6",
        "gateway/revocations.py",
        "error=failed[0])\n            return False\n",
        "error=failed[0])\n            return True\n",
        "tests/gateway/test_registered_owed.py::"
        "test_what_is_not_acknowledged_is_in_force_recorded_and_asked_again[narrow]",
    ),
    Mutant(
        "readers_run_on",
        "P6",
        "gateway/withdrawal.py",
        "return request.reads is not None and not permission.to_go_on(who, request.reads)",
        "return False",
        _REVOCATION + "test_a_narrowed_list_ends_who_lost_by_it_and_answers_afterwards",
    ),
    Mutant(
        "seal_is_of_any_place",
        "P12",
        "security/seal.py",
        "return enc((self.purpose.value, self.tenant, self.id, self.version))",
        "return enc((self.purpose.value, self.tenant, self.version))",
        "tests/security/test_seal.py::test_what_is_sealed_opens_in_its_place_alone",
    ),
    Mutant(
        "shredded_secret_still_opens",
        "P12",
        _TENANT_SECRETS,
        "            kept.pop(version, None)\n",
        "            pass\n",
        _SHREDDED,
    ),
    Mutant(
        "shredded_tenant_begins_anew_by_itself",
        "P12",
        _TENANT_SECRETS,
        "while not self._kept.get(tenant) and tenant not in self._shredded:",
        "while not self._kept.get(tenant):",
        _SHREDDED,
    ),
    Mutant(
        "shredded_secret_stays_in_the_file",
        "P12",
        "tenants/secrets.py",
        "        await self.store.forget_overwritten()\n",
        "",
        "tests/tenants/test_secrets.py::test_what_is_destroyed_is_in_no_file_while_the_store_is_open",
    ),
    Mutant(
        "incomplete_purge_is_claimed",
        "P12",
        "security/purge.py",
        "zeroed = self.blocks == self.blocks_zeroed == self.blocks_read_zero",
        "zeroed = True",
        "tests/security/test_purge.py::test_what_was_not_done_is_not_claimed",
    ),
)
