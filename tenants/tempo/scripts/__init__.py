"""The scripts that run in Redis, read from the files beside this: as one library of functions, or one by one.

A function survives a restart and needs no right to run whatever is sent; where a server has none, each
script goes by its digest, and in full where that is not known.  Names carry a digest of the source, so
that two versions of this program can share a server.  Refuses to know: connections.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

SHARED = ("clock", "common", "till")
NAMES = ("admit", "leave", "renew", "headroom", "prove", "till_draw", "till_fill", "till_return")
READS = frozenset({"headroom"})


def shipped(name: str) -> str:
    """The text of one file."""
    return files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Scripts:
    """`source` gives the text of each file by its name."""

    source: Callable[[str], str] = shipped

    @cached_property
    def digest(self) -> str:
        whole = "\0".join(self.source(name) for name in (*SHARED, *NAMES))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]

    @cached_property
    def library(self) -> str:
        """For FUNCTION LOAD."""
        parts = [f"#!lua name=lockgate_{self.digest}"]
        parts += [self.source(name) for name in (*SHARED, *NAMES)]
        for name in NAMES:
            flags = "flags = {'no-writes'}" if name in READS else ""
            parts.append(
                f"redis.register_function{{function_name = '{self.function(name)}', "
                f"callback = {name}, {flags}}}"
            )
        return "\n".join(parts) + "\n"

    def function(self, name: str) -> str:
        return f"lockgate_{name}_{self.digest}"

    def script(self, name: str) -> str:
        """For EVAL."""
        return self._whole[name]

    def sha(self, name: str) -> str:
        """For EVALSHA.  The protocol's digest, not one of ours: nothing hangs on its strength."""
        return self._shas[name]

    @cached_property
    def _whole(self) -> dict[str, str]:
        shared = "\n".join(map(self.source, SHARED))
        return {
            name: f"{shared}\n{self.source(name)}\nreturn {name}(KEYS, ARGV)\n" for name in NAMES
        }

    @cached_property
    def _shas(self) -> dict[str, str]:
        return {
            name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            for name, text in self._whole.items()
        }
