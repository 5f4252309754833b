"""The command line: what people type, and one clear sentence when it cannot be done.

Commands that read or change a server's state speak to its admin listener (`client`) and to nothing
else; the rest work on this machine alone.  Knows no policy and no store.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 0 done, 1 refused or at fault, 2 mistyped, 130 interrupted.  Never a traceback for what
    a user, a file or a server did."""
    from gateway.cli.app import app
    from gateway.cli.show import Refusal, tell_refusal

    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(words, prog_name="lockgate")
    except Refusal as refusal:
        tell_refusal(refusal, as_json="--json" in words)
        sys.exit(refusal.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `lockgate … | head`
        sys.stderr.close()
        sys.exit(141)
