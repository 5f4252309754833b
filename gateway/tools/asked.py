"""What a request says of tools, in whichever API it came: the functions that the model may call, and whether it must.

Each API's schema reads its own form into these; the chat template shows them to the model (`text/templates`), a
grammar forces a call where one is asked for, and the answer's calls come back as `tools.calls`.
Refuses to know: JSON bytes, HTTP, chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Choosing(StrEnum):
    """NONE: the tools are shown and never called.  REQUIRED: at least one is called, or the one that is named."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters` is a JSON Schema of an object.  `strict`: arguments should keep it whatever was chosen.
    `schema_param`: the field of the request where it stands."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    schema_param: str = field(default="tools", compare=False)


@dataclass(frozen=True, slots=True)
class Tools:
    """`named`: with REQUIRED, the only one that may be called.  `allowed`: these alone may be, though all are shown.
    `parallel`: more than one call in an answer."""

    listed: tuple[Tool, ...]
    choosing: Choosing = Choosing.AUTO
    named: str | None = None
    parallel: bool = True
    allowed: frozenset[str] | None = None

    def __post_init__(self) -> None:
        assert self.listed
        assert self.named is None or self.choosing is Choosing.REQUIRED

    @property
    def single(self) -> bool:
        """One call at most."""
        return self.named is not None or not self.parallel

    @property
    def callable(self) -> tuple[Tool, ...]:
        """Those that may be called."""
        if self.choosing is Choosing.NONE:
            return ()
        only = self.allowed if self.named is None else {self.named}
        return tuple(tool for tool in self.listed if only is None or tool.name in only)
