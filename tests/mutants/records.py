"""What is written down: the audit log and its proofs, and what leaves the process by any pen (P10, P11)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CHAIN = "security/audit_chain.py"
_LOG = "security/audit_log.py"
_MERKLE = "security/merkle.py"
_PROOF = "security/audit_proof.py"
_REDACT = "security/redact.py"
_TESTS = "tests/security/test_audit.py::"
_LOG_TESTS = "tests/security/test_audit_log.py::"
_TREES = "tests/security/test_merkle.py::"
_PROVEN = "tests/security/test_audit_proof.py::test_every_record_is_proven_and_nothing_else"
_FAILS_CLOSED = _LOG_TESTS + "test_fails_closed_leaves_no_trace_and_recovers_with_a_record[1-28]"

MUTANTS = (
    Mutant(
        "stalled_log_serves_on",
        "P11",
        "gateway/lifecycle.py",
        "        house.audit.require_healthy()\n",
        "        pass\n",
        "tests/gateway/test_line.py::test_a_stalled_audit_log_stops_service",
    ),
    Mutant(
        "failed_record_is_acknowledged",
        "P11",
        _LOG,
        "entry.done.set_exception(AuditUnavailable(type(error).__name__))",
        "entry.done.set_result(_Written(0))",
        _FAILS_CLOSED,
    ),
    Mutant(
        "failing_log_is_healthy",
        "P11",
        _LOG,
        "if self._failing or self._stalled or self._closed:",
        "if self._closed:",
        _FAILS_CLOSED,
    ),
    Mutant(
        "record_is_not_synced",
        "P11",
        "security/audit_files.py",
        "            written += self._disk.write(fd, data[written:])\n        self._disk.sync(fd)\n",
        "            written += self._disk.write(fd, data[written:])\n",
        _LOG_TESTS + "test_a_record_is_synced_before_its_caller_hears_and_a_group_shares_one_sync",
    ),
    Mutant(
        "chain_without_the_hash_before",
        "P11",
        _CHAIN,
        "_sized(VERSION) + _sized(last) + _sized(signed)",
        "_sized(VERSION) + _sized(signed)",
        _TESTS + "test_a_record_of_another_chain_at_the_same_place_breaks_it",
    ),
    Mutant(
        "record_without_its_mac",
        "P11",
        _CHAIN,
        "if key is not None and not hmac.compare_digest(\n        _mac(key",
        "if key == b'' and not hmac.compare_digest(\n        _mac(key",
        _TESTS + "test_a_forger_without_the_key_cannot_go_on_with_a_chain",
    ),
    Mutant(
        "end_cut_off_is_not_seen",
        "P11",
        "security/audit_verify.py",
        '    if walked.link.count < head.link.count:\n        return Fault("truncated", walked.link.count)\n',
        "    if walked.link.count < head.link.count:\n        return None\n",
        _TESTS + "test_a_cut_at_every_byte_is_found",
    ),
    Mutant(
        "merkle_proof_is_not_checked",
        "P11",
        _MERKLE,
        "return last == 0 and found == root",
        "return last == 0",
        _TREES + "test_every_inclusion_proof_is_the_rfcs_and_proves_its_leaf_alone",
    ),
    Mutant(
        "consistency_proof_of_another_beginning",
        "P11",
        _MERKLE,
        "return last == 0 and before == old_root and after == root",
        "return last == 0 and after == root",
        _TREES + "test_every_consistency_proof_is_the_rfcs_and_proves_its_beginning_alone",
    ),
    Mutant(
        "leaf_passes_for_a_node",
        "P11",
        _MERKLE,
        'hashlib.sha256(b"\\0" + data)',
        'hashlib.sha256(b"\\1" + data)',
        _TREES + "test_known_answers",
    ),
    Mutant(
        "checkpoint_signed_by_anybody",
        "P11",
        "security/audit_checkpoint.py",
        "    except (InvalidSignature, ValueError):\n        return False\n",
        "    except (InvalidSignature, ValueError):\n        pass\n",
        "tests/security/test_audit_checkpoint.py::test_every_changed_character_of_a_note_is_seen",
    ),
    Mutant(
        "checkpoint_covers_what_was_rewritten",
        "P11",
        "security/audit_verify.py",
        "if checkpoint.root == self.tree.root():",
        "if checkpoint.root:",
        "tests/security/test_audit_checkpoint.py::"
        "test_a_kept_checkpoint_shows_what_somebody_with_all_keys_put_in_its_place",
    ),
    Mutant(
        "proof_without_a_signature",
        "P11",
        _PROOF,
        "checkpoint = read_note(proof.note, public)",
        "checkpoint = read_note(proof.note, None)",
        _PROVEN,
    ),
    Mutant(
        "purge_proof_is_not_checked",
        "P12",
        "security/purge.py",
        'if value.get("kind") != CacheEvent.PURGED or not holds(proof, public):',
        'if value.get("kind") != CacheEvent.PURGED:',
        "tests/security/test_purge.py::test_no_word_of_it_can_be_changed",
    ),
    Mutant(
        "pseudonym_is_unkeyed",
        "P10",
        "security/pseudonyms.py",
        "hmac.digest(key, enc(what), 'sha256')",
        "hmac.digest(b'', enc(what), 'sha256')",
        "tests/security/test_pseudonyms.py::test_equal_for_equal_and_for_nothing_else",
    ),
    Mutant(
        "person_is_named_in_the_log",
        "P10",
        "security/pseudonyms.py",
        'return self._current(tenant, ("person", issuer, user))',
        'return f"1.{issuer}/{user}"',
        "tests/security/test_pseudonyms.py::test_equal_for_equal_and_for_nothing_else",
    ),
    Mutant(
        "record_holds_any_text",
        "P13",
        "security/audit.py",
        'return text if len(json.dumps(text)) <= 600 else text[:40] + "…"',
        "return text",
        _TESTS + "test_text_is_bounded_and_the_fields_are_a_closed_set",
    ),
    Mutant(
        "any_field_is_logged",
        "P10",
        _REDACT,
        "if name not in NAMES and not (_UNITS.fullmatch(name) and _is_number(value)):",
        "if not name:",
        "tests/security/test_redact.py::test_an_unlisted_name_shows_a_type",
    ),
    Mutant(
        "exception_is_logged_with_its_message",
        "P10",
        _REDACT,
        "kinds.append(type(at).__name__)",
        "kinds.append(repr(at))",
        "tests/security/test_redact.py::test_an_exception_shows_types_and_places_never_messages",
    ),
    Mutant(
        "credential_is_logged",
        "P10",
        _REDACT,
        "masked = _SECRETS.sub(_MASK, cut)",
        "masked = cut",
        "tests/security/test_redact.py::test_what_looks_like_a_credential_is_masked_anywhere",
    ),
    Mutant(
        "engine_logs_what_failed",
        "P10",
        "executor/engine.py",
        "kind=type(failure).__name__",
        "kind=repr(failure)",
        "tests/executor/test_engine.py::test_a_failed_step_ends_its_requests_and_the_engine_lives_on",
    ),
)
