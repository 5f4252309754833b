"""What a cached block's key is made of: labels, context, chain, and who supplied the text (P1, P2, P9)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LABELS = "policies/scope/labels.py"
_CHAIN = "policies/scope/chain.py"
_CONTEXT = "policies/scope/context.py"
_KEYS = "security/cache_keys.py"
_EVERY_FIELD = "tests/policies/scope/test_labels.py::test_every_field_is_in_the_encoding"
_MATRIX = "tests/security/test_cache_matrix.py::test_one_difference_and_no_value_after_it_coincides"
_PREFIX = (
    "tests/policies/scope/test_prefix.py::"
    "test_everything_after_the_first_that_may_not_be_shared_is_the_users"
)
_EACH_OF_CONTEXT = "tests/policies/scope/test_chain.py::test_every_field_of_a_context_counts"


def _label_without(name: str) -> Mutant:
    return Mutant(
        f"label_without_{name}",
        "P1",
        _LABELS,
        "_plain(self, each.name)) for each in fields(self)))",
        f'_plain(self, each.name)) for each in fields(self) if each.name != "{name}"))',
        _EVERY_FIELD,
    )


def _context_without(name: str) -> Mutant:
    return Mutant(
        f"context_without_{name}",
        "P2",
        _CONTEXT,
        "getattr(of, each.name)) for each in fields(of))",
        f'getattr(of, each.name)) for each in fields(of) if each.name != "{name}")',
        _EACH_OF_CONTEXT,
    )


MUTANTS = (
    *map(_label_without, ("tenant", "issuer", "subject", "narrowing", "session")),
    Mutant(
        "tenant_not_in_the_key",
        "P1",
        _KEYS,
        "self.public if label.tenant is None else self.secret_of(label.tenant).secret",
        "self.public",
        "tests/security/test_cache_keys.py::test_as_the_house_wires_it",
    ),
    Mutant(
        "acl_version_not_in_the_key",
        "P6",
        _LABELS,
        "(each.id, each.acl_version, each.content_version) for",
        "(each.id, each.content_version) for",
        _MATRIX,
    ),
    Mutant(
        "content_version_not_in_the_key",
        "P1",
        _LABELS,
        "(each.id, each.acl_version, each.content_version) for",
        "(each.id, each.acl_version) for",
        _MATRIX,
    ),
    Mutant(
        "template_version_not_in_the_key",
        "P2",
        _LABELS,
        "(each.owner, each.id, each.version) for",
        "(each.owner, each.id) for",
        _MATRIX,
    ),
    Mutant(
        "epoch_not_in_the_key",
        "P1",
        _KEYS,
        'b"kv/v1" + encoded + epoch',
        'b"kv/v1" + encoded',
        _MATRIX,
    ),
    Mutant(
        "label_goes_down_again",
        "P1",
        "policies/scope/blocks.py",
        "label = join(label, segment.label)",
        "label = segment.label",
        "tests/policies/scope/test_blocks.py::test_public_text_after_a_users_is_the_users",
    ),
    Mutant(
        "block_across_a_boundary_takes_the_lower_label",
        "P1",
        _CHAIN,
        "        counts.append(until // block_tokens - before)\n        before = until // block_tokens",
        "        counts.append(-(-until // block_tokens) - before)\n"
        "        before = -(-until // block_tokens)",
        "tests/executor/test_caching.py::test_a_block_across_a_boundary_has_the_higher_label",
    ),
    Mutant(
        "only_the_first_block_is_salted",
        "P1",
        _CHAIN,
        "key, named = scope.key, item(scope.tag)",
        'key, named = (b"", b"") if self.position else (scope.key, item(scope.tag))',
        _MATRIX,
    ),
    Mutant(
        "chain_forgets_what_came_before",
        "P1",
        _CHAIN,
        'hmac.digest(key, b"\\x01" + head + VERSION',
        'hmac.digest(key, b"\\x01" + VERSION',
        _MATRIX,
    ),
    Mutant(
        "chain_is_unkeyed",
        "P10",
        _CHAIN,
        "key, named = scope.key, item(scope.tag)",
        'key, named = b"", item(b"")',
        _MATRIX,
    ),
    Mutant(
        "encoding_without_lengths",
        "P1",
        "policies/scope/encoding.py",
        "return kind + len(body).to_bytes(4) + body",
        "return kind + body",
        "tests/policies/scope/test_encoding.py::test_no_two_values_have_one_encoding_and_none_begins_another",
    ),
    Mutant(
        "label_from_the_text",
        "P1",
        "gateway/text/masks.py",
        "        self._sources.append(Segment(text, Origin.CONTENT, source, label))\n",
        "        known = vars(Masks.mask)\n"
        "        if label is None:\n"
        "            found = (of for words, of in known.items() if text.startswith(words))\n"
        "            label = next(found, None)\n"
        "        else:\n"
        "            known[text] = label\n"
        "        self._sources.append(Segment(text, Origin.CONTENT, source, label))\n",
        "tests/gateway/test_caching.py::test_pasted_text_of_a_template_and_a_document_is_the_users",
    ),
    Mutant(
        "registered_text_behind_the_clients_is_shared",
        "P1",
        "policies/scope/prefix.py",
        "if piece.supplier is Supplier.SCAFFOLD:",
        "if piece.supplier in {Supplier.SCAFFOLD, Supplier.CLIENT}:",
        "tests/policies/scope/test_prefix.py::"
        "test_whatever_comes_labels_rise_and_no_client_token_is_shared",
    ),
    Mutant(
        "second_document_is_shared",
        "P1",
        "policies/scope/prefix.py",
        "if document not in {None, label} or len(label.documents) != 1:",
        "if len(label.documents) != 1:",
        _PREFIX,
    ),
    *map(
        _context_without,
        (
            "asked_digest",
            "weights_digest",
            "adapter_digest",
            "dtype",
            "numerics",
            "kernel_config",
            "block_tokens",
            "tokenizer_digest",
            "template_digest",
            "tools_digest",
            "locale",
            "region",
            "safety_policy",
            "safety_policy_version",
            "flags",
        ),
    ),
    Mutant(
        "gateway_leaves_the_template_out_of_the_context",
        "P2",
        "gateway/caching.py",
        "template = card.chat_template if templated else None",
        "template = None",
        "tests/gateway/test_caching.py::test_the_context_knows_all_that_the_gateway_knows",
    ),
    Mutant(
        "clients_cache_salt_is_accepted",
        "P9",
        "gateway/api/refused.py",
        '        "cache_salt",\n',
        "",
        "tests/gateway/test_schema_requests.py::test_what_is_shared_never_follows_from_a_request_and_it_says_so",
    ),
    Mutant(
        "clients_chat_template_is_accepted",
        "P9",
        "gateway/api/refused.py",
        '    "chat_template": ((), _TEMPLATE),\n',
        "",
        "tests/gateway/test_schema_requests.py::test_what_is_not_built_yet_says_so_and_what_is_forbidden_says_why",
    ),
    Mutant(
        "clients_request_id_is_taken",
        "P9",
        "gateway/middleware/request_id.py",
        "request_id = self.mint()",
        "request_id = _client_request_id(scope) or self.mint()",
        "tests/gateway/test_middleware.py::test_a_request_id_is_minted_and_the_callers_is_only_kept",
    ),
    Mutant(
        "clients_own_users_are_one",
        "P1",
        _KEYS,
        "named = (safety_identifier, user, prompt_cache_key)",
        "named = (safety_identifier, user, None)",
        "tests/security/test_cache_keys.py::test_what_a_client_calls_its_users_divides_and_never_merges",
    ),
)
