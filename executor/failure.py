"""Where a failure happened, for a log that may not hold its message: that may quote a prompt.

Refuses to know: what failed.
"""

from __future__ import annotations


def where(failure: BaseException) -> str:
    """File and line of the innermost frame."""
    trace = failure.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
