"""From a `Grammar` of the contract to llguidance's own form, and from its complaints to a sentence.

JSON may have, wherever it allows white space, one space or one line break with its indent, and
nothing longer: a model can pretty-print, and cannot go on for ever between two brackets.  What a
schema says in `x-guidance` is overridden.  A keyword that is not implemented is an error that names it.

Refuses to know: tokens, processes, budgets.  Source: llguidance 1.9.1, docs/json_schema.md.
"""

from __future__ import annotations

import json
import re
from typing import Final

from llguidance import LLMatcher, LLParserLimits, regex_to_lark

from executor.contract import Grammar, GrammarKind

INDENT_MAX: Final = 16
REASON_CHARS_MAX: Final = 240
LIMITS: Final = LLParserLimits(
    max_lexer_states=100_000,
    precompute_large_lexemes=False,  # eager work for later masks: most answers end before it pays
    verbose_errors=False,  # they would show the grammar and the text so far
)
_OPTIONS: Final = {
    "whitespace_pattern": rf"\x20|\x0A\x20{{0,{INDENT_MAX}}}",
    "whitespace_flexible": False,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": True,
    "lenient": False,
}


_IN_LARK: Final = re.compile(r"at ([0-9]+)\([0-9]+\): failed to compile JSON schema: ")


class BadGrammar(Exception):
    """The text is a sentence for whoever wrote the grammar."""


def source(grammar: Grammar) -> str:
    """What an `LLMatcher` takes.  Raises BadGrammar for what can be told without compiling."""
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return _json({"type": "object"})
        case GrammarKind.JSON_SCHEMA:
            return _json(_loaded(grammar.text, dict, "a JSON Schema must be a JSON object"))
        case GrammarKind.REGEX:
            inner = regex_to_lark(grammar.text, use_ascii="dw")  # \d and \w as in JSON Schema
            return LLMatcher.grammar_from_lark(f"start: /{inner}/")
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)
        case GrammarKind.CHOICE:
            wanted = "choices must be a list of strings that are not empty"
            choices = _loaded(grammar.text, list, wanted)
            if not choices or not all(isinstance(each, str) and each for each in choices):
                raise BadGrammar(wanted)
            # a JSON string is a Lark string, and DEL and the like are escaped
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))


def _json(schema: dict[str, object]) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_OPTIONS)  # type: ignore[arg-type]  # a TypedDict of just these


def _loaded(text: str, kind: type, wanted: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadGrammar(wanted) from None
    if not isinstance(value, kind):
        raise BadGrammar(wanted)
    return value  # type: ignore[return-value]  # of `kind`, as was just seen


def reason(complaint: str) -> str:
    """One short line out of a compiler's message: of a regular expression's, the one with its name."""
    if placed := _IN_LARK.match(complaint):
        return _bounded(f"in line {placed[1]}: {_says(complaint[placed.end() :])}")
    return _bounded(_says(complaint))


def _says(complaint: str) -> str:
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if named:
        says = f"the regular expression is not accepted: {named[0]}"
    elif "not present in a registry" in complaint:
        says = "a $ref leads out of the schema, and nothing is ever fetched; use #/$defs"
    elif complaint.startswith("Unimplemented keys"):
        says = "these keywords are not supported: " + lines[0].partition(":")[2].strip()
    elif "fuel exhausted" in complaint or "too large" in complaint:
        says = "it is too complex"
    else:
        says = lines[0] if lines else "it cannot be compiled"
    return says


def _bounded(says: str) -> str:
    shown = "".join(letter if letter.isprintable() else " " for letter in says)
    return shown[: REASON_CHARS_MAX - 1] + "…" if len(shown) > REASON_CHARS_MAX else shown
