"""What finance reads: reports, exports, closed months, and whose they are (M6, M9, M11, M13)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_FACTS = "tenants/reports/facts.py"
_CUTS = "tenants/reports/cuts.py"
_ROWS = "tenants/focus/rows.py"
_PERIODS = "policies/periods.py"
_RECONCILE = "tenants/reconcile.py"
_GOLDEN = (
    "tests/tenants/test_finance_golden.py::test_every_report_is_what_the_clerk_worked_out[sqlite]"
)
_CLOSED = "tests/tenants/test_closing.py::test_a_closed_month_never_changes[sqlite]"
_MONTHS = "tests/policies/test_periods.py::test_a_month_is_a_utc_month"
_FORMULAS = "tests/tenants/test_focus.py::test_a_formula_is_text_and_the_row_says_so[sqlite]"
_EXPORTED = "tests/gateway/test_exports.py::test_an_export_is_what_its_manifest_says"

MUTANTS = (
    Mutant(
        "cut_drops_what_has_no_project",
        "M9",
        _FACTS,
        "    narrowed = select(every)\n",
        "    narrowed = select(every).where(every.c.project.is_not(None))\n",
        _GOLDEN,
    ),
    Mutant(
        "tokens_counted_with_their_estimate",
        "M9",
        _CUTS,
        "func.sum(case((of.meter == meter.value, of.tokens), else_=0))",
        "func.sum(case((of.meter == meter.value, func.abs(of.tokens)), else_=0))",
        _GOLDEN,
    ),
    Mutant(
        "entry_by_hand_is_in_no_cut",
        "M9",
        _FACTS,
        "    every = union_all(lines, others)",
        "    every = union_all(lines, others.where(_L.c.amount < 0))",
        "tests/tenants/test_focus.py::test_what_is_given_by_hand_is_a_row_of_its_own[sqlite]",
    ),
    Mutant(
        "page_begins_with_the_last_row_again",
        "M9",
        _CUTS,
        "counted = counted.where(tuple_(*order) > tuple_(",
        "counted = counted.where(tuple_(*order) >= tuple_(",
        "tests/tenants/test_reports.py::test_pages_follow_each_other[sqlite]",
    ),
    Mutant(
        "late_usage_enters_a_closed_month",
        "M11",
        "tenants/postings.py",
        'return effective_for(self._closed_until_ms, row["at_ms"], self._now_ms)',
        'return int(row["at_ms"])',
        _CLOSED,
    ),
    Mutant(
        "gate_is_never_asked",
        "M11",
        "tenants/periods.py",
        "    return closed_until(conn, read=True)\n",
        "    return 0\n",
        _CLOSED,
    ),
    Mutant(
        "month_closed_while_late_usage_enters",
        "M11",
        _PERIODS,
        "    if now_ms < period.closable_ms:\n",
        "    if now_ms < period.end_ms:\n",
        "tests/policies/test_periods.py::test_a_month_closes_48_hours_after_its_end_and_in_order",
    ),
    Mutant(
        "months_by_somebodys_clock_on_the_wall",
        "M11",
        _PERIODS,
        "    return (day.toordinal() - _EPOCH) * DAY_MS\n",
        "    return (day.toordinal() - _EPOCH) * DAY_MS - 3_600_000\n",
        _MONTHS,
    ),
    Mutant(
        "edit_of_a_closed_month_is_not_hashed",
        "M11",
        "tenants/closing.py",
        "*(_E.c.tokens, _E.c.price_id, _E.c.unit_price, _E.c.nano_usd, _E.c.at_ms),",
        "*(_E.c.price_id, _E.c.unit_price, _E.c.nano_usd, _E.c.at_ms),",
        "tests/tenants/test_closing.py::test_an_edit_of_a_closed_month_is_found[sqlite]",
    ),
    Mutant(
        "row_is_rounded_instead_of_its_lines",
        "M9",
        _ROWS,
        "    billed = scaled(line.nano_usd, -9)\n",
        "    billed = scaled((2 * line.unit_price * line.tokens + 10**6) // (2 * 10**6), -9)\n",
        "tests/tenants/test_focus.py::test_rounding_is_by_line_and_not_by_row[sqlite]",
    ),
    Mutant(
        "digits_beyond_28_are_rounded",
        "M9",
        _ROWS,
        "EXACT = Context(prec=80, traps=[Inexact, Rounded])",
        "EXACT = Context(prec=28)",
        "tests/tenants/test_focus.py::test_no_digit_is_lost_where_amounts_are_large",
    ),
    Mutant(
        "formula_reaches_a_spreadsheet",
        "M9",
        "tenants/focus/files.py",
        'FORMULA = ("=", "+", "-", "@", "\\t", "\\r")',
        'FORMULA = ("=", "+", "-", "\\t", "\\r")',
        _FORMULAS,
    ),
    Mutant(
        "text_is_altered_silently",
        "M9",
        "tenants/focus/files.py",
        '            out.writerow([*cells, ";".join(risky)])\n',
        '            out.writerow([*cells, ""])\n',
        _FORMULAS,
    ),
    Mutant(
        "reconciliation_believes_the_price_of_a_line",
        "M6",
        _RECONCILE,
        "        if row.unit_price != listed[row.meter]:\n",
        "        if row.unit_price < 0:\n",
        "tests/tenants/test_reconcile.py::test_each_thing_that_is_wrong_is_named",
    ),
    Mutant(
        "organization_shows_everybodys",
        "M13",
        "gateway/api/administration/organization.py",
        "        tenant=await readable(call, single),\n",
        "        tenant=await readable(call, single) and None,\n",
        "tests/gateway/test_organization.py::test_a_tenant_sees_itself_whatever_it_asks_for",
    ),
    Mutant(
        "export_shows_everybodys",
        "M13",
        "gateway/api/administration/exports.py",
        "        tenant=tenant,\n",
        "        tenant=None,\n",
        _EXPORTED,
    ),
    Mutant(
        "export_tells_tenants_device_time",
        "M13",
        "gateway/api/administration/exports.py",
        "device=access.may_read_cost(call.who)",
        "device=True",
        _EXPORTED,
    ),
    Mutant(
        "clients_word_over_its_key",
        "M1",
        "policies/tags.py",
        "rank[tag.origin] < rank[there.origin]",
        "rank[tag.origin] > rank[there.origin]",
        "tests/policies/test_tags.py::test_one_value_a_name_a_keys_over_a_claims_over_the_clients",
    ),
    Mutant(
        "malformed_tags_of_a_token_are_dropped",
        "M1",
        "security/tokens.py",
        "        if not isinstance(text, str) or tags.fault(key, text):\n            raise AuthDenied(Denied.CLAIM)",
        "        if not isinstance(text, str) or tags.fault(key, text):\n            continue",
        "tests/security/test_tokens.py::test_a_token_whose_tags_are_none_is_refused",
    ),
    Mutant(
        "rotated_key_loses_its_tags",
        "M1",
        "tenants/directory_rows.py",
        "            replaced_by=None,\n        )",
        "            replaced_by=None,\n            tags=(),\n        )",
        "tests/gateway/test_tags.py::"
        "test_a_keys_tags_are_shown_stay_with_it_and_bind_whatever_its_client_says",
    ),
    Mutant(
        "cut_by_tag_drops_what_has_none",
        "M9",
        _FACTS,
        "source = source.outerjoin(tagged, mine)",
        "source = source.join(tagged, mine)",
        _GOLDEN,
    ),
)
