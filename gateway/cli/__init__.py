"""The command line: what people type, and one clear sentence when it cannot be done.

Commands that read or change a server's state speak to its admin listener (`client`) and to nothing
else; the rest work on this machine alone.  Knows no policy and no store.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.show import Refusal


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
    except OSError as error:
        if error.filename is None:
            raise
        tell_refusal(_unusable(error), as_json="--json" in words)
        sys.exit(1)


def _unusable(error: OSError) -> Refusal:
    """A file or folder that this account cannot use as it must, wherever that was noticed."""
    from gateway.cli.show import Refusal

    if isinstance(error, FileExistsError | NotADirectoryError):
        return Refusal(f"{error.filename} is no folder, and one is needed. Name another place.")
    return Refusal(
        f"{error.filename} cannot be used: {error.strerror}. Give it to this account, or name another "
        "place."
    )
