"""What somebody wrote, fit to be shown back: short, on one line, nothing that drives a terminal.

Every refusal passes here (`errors.ApiError`, `settings.faults.SettingsError`), so that no message grows
with what came in; where a word is quoted inside a sentence, it is cut here too.
Refuses to know: what is secret (`security.redact`).  Source: SECURITY.md §4 (L3).
"""

from __future__ import annotations

from typing import Final

WORD_CHARS_MAX: Final = 64
SENTENCE_CHARS_MAX: Final = 2_000
_BLANKS: Final = "\t\n\r\v\f"


def fit(text: str, chars_max: int = WORD_CHARS_MAX, *, keep: str = "") -> str:
    """`text` of at most `chars_max` characters and an ellipsis; what is not printable and not in `keep` is
    a blank where it was one, and a replacement character elsewhere."""
    cut = text if len(text) <= chars_max else text[:chars_max] + "…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() or c in keep else " " if c in _BLANKS else "�" for c in cut)
