"""A jinja2 environment in which a chat template cannot hurt the process that renders it.

A template is a file that came with a model; it is an artefact, and may be hostile.  jinja2's
`ImmutableSandboxedEnvironment` keeps it from reaching Python's internals, but not from looping or
growing without end.  Here every loop step, call, filter, test and piece of output is metered: steps,
characters made, and wall time.  To that end the parsed template is rewritten before it is compiled
(`_Rewriter`), and what may be called at all is a list (`_FILTERS`, `_METHODS`): what is not on it
is refused, never guessed to be safe.

Three things grow without a loop and are caught where they are made: repetition and replacement
(measured before they happen), lists of lists (their expanded size is charged when they are built, so
that printing or comparing them is bounded), and integers (256 bits).

Refuses to know: messages, roles, models.  Conventions: transformers' `chat_template_utils`
(trim_blocks, lstrip_blocks, loop controls, `generation` blocks, tojson, raise_exception,
strftime_now).  Source: jinja2 3.1 `sandbox`, `compiler`; SECURITY.md §5 (CVE-2025-62426).
"""

from __future__ import annotations

import functools
import html
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from gateway.text.masks import Masks


class TemplateFault(Exception):
    """The template is broken, hostile, or too expensive."""


class TemplateRefusal(Exception):
    """The template itself said no, by `raise_exception`: its words, for the client."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """`steps` and `chars` are for one render; `input_chars` times a few are added to `chars`, since
    templates search and cut what they are given."""

    template_bytes: int = 128 * 1024
    steps: int = 1_000_000
    chars: int = 16_000_000
    seconds: float = 3.0


class Meter:
    """What one render may still spend.  Raises TemplateFault when it is used up."""

    __slots__ = ("_chars", "_clock", "_end_s", "_steps")

    def __init__(self, bounds: Bounds, input_chars: int, clock: Callable[[], float]) -> None:
        self._steps = bounds.steps
        self._chars = bounds.chars + 64 * input_chars
        self._clock = clock
        self._end_s = clock() + bounds.seconds

    def step(self, count: int = 1) -> None:
        self._steps -= count
        if self._steps < 0:
            raise TemplateFault("The chat template takes too many steps.")
        if self._clock() > self._end_s:
            raise TemplateFault("The chat template takes too long.")

    def made(self, chars: int) -> None:
        """Charge text, before it is made where it could be large."""
        self._chars -= chars
        if self._chars < 0:
            raise TemplateFault("The chat template makes too much text.")

    def weigh(self, value: Any) -> Any:
        """Charge a result by its expanded size, and give it back."""
        if isinstance(value, str):
            self.made(len(value))
        elif isinstance(value, list | tuple | dict | Namespace):
            self._walk(value, text=False)
        return value

    def printable(self, value: Any) -> str:
        """`str(value)`, charged beforehand."""
        if not isinstance(value, str):
            self._walk(value, text=True)
            value = str(value)
        self.made(len(value))
        return str(value)

    def _walk(self, value: Any, *, text: bool, depth: int = 0) -> None:
        """Charge every node as often as it would be printed; with `text`, what it would print."""
        if depth > 64:
            raise TemplateFault("The chat template nests values too deeply.")
        if isinstance(value, Namespace):
            value = object.__getattribute__(value, "_Namespace__attrs")
        if isinstance(value, str):
            self.step(1 + len(value) // 1024)
            if text:
                self.made(len(value))
        elif isinstance(value, list | tuple):
            self.step(1 + len(value))
            for item in value:
                self._walk(item, text=text, depth=depth + 1)
        elif isinstance(value, dict):
            self.step(1 + len(value))
            for pair in value.items():
                self._walk(pair, text=text, depth=depth + 1)
        elif text and not isinstance(value, int | float | range | Undefined | None):
            raise TemplateFault(f"The chat template prints a {type(value).__name__}.")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_METHODS: Mapping[type, frozenset[str]] = {
    str: _words(
        "strip lstrip rstrip split rsplit splitlines partition rpartition startswith endswith lower "
        "upper title capitalize replace join find rfind index rindex count isdigit isalpha isalnum "
        "isspace isupper islower isnumeric isdecimal removeprefix removesuffix"
    ),
    dict: _words("items keys values get"),
    list: _words("index count"),
    tuple: _words("index count"),
}
_FILTERS = _words(
    "abs capitalize count d default dictsort e escape first float int items join last length list "
    "lower map max min reject rejectattr replace reverse safe select selectattr sort string title "
    "tojson trim unique upper"
)
_GLOBALS = frozenset({"range", "dict", "cycler", "joiner", "namespace"})
_REFUSED_NODES = (
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
    nodes.Block,
    nodes.EvalContextModifier,
    nodes.ScopedEvalContextModifier,
)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks training masks; for serving it is its body."""

    tags = {"generation"}  # noqa: RUF012 — jinja2 declares it an instance variable

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rewriter(NodeTransformer):
    """Lead through the meter what jinja2 compiles to plain Python."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if isinstance(node, _REFUSED_NODES):
            raise TemplateFault(
                f"The chat template uses {type(node).__name__!r}, not allowed here."
            )
        return super().generic_visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 — jinja2's dispatch by name
        if node.recursive:
            raise TemplateFault("The chat template uses a recursive loop, not allowed here.")
        self.generic_visit(node)
        node.iter = _through("metered loop", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 — jinja2's dispatch by name
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return _through("metered concat", items)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802 — jinja2's dispatch by name
        return nodes.Const(node.data, lineno=node.lineno)  # so that it passes `finalize`

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802 — jinja2's dispatch by name
        self.generic_visit(node)
        return _through("metered value", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802 — jinja2's dispatch by name
        self.generic_visit(node)
        return _through("metered value", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802 — jinja2's dispatch by name
        self.generic_visit(node)
        return _through("metered value", node) if node.ctx == "load" else node


def _through(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """One template's.  Not for two threads at once: `meter` is that of the render in progress."""

    intercepted_binops = frozenset({"+", "-", "*", "**", "%"})

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _Generation],
            optimized=False,  # folding constants would run filters at compile time
            finalize=self._finalize,
            cache_size=0,
        )
        self.bounds = bounds
        self.clock = clock
        self.now = datetime.min.replace(tzinfo=UTC)
        self.meter = Meter(bounds, 0, clock)
        self.masks: Masks | None = None
        self.globals = {name: self.globals[name] for name in _GLOBALS} | {
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }
        own: dict[str, Callable[..., Any]] = {
            "tojson": self._tojson,
            "join": self._join,
            "replace": self._replace,
            "string": self._string,
            "e": self._escape,
            "escape": self._escape,
            "safe": lambda value: value,
        }
        listed = {name: own.get(name, self.filters.get(name)) for name in _FILTERS}
        self.filters = {name: self._metered(f) for name, f in listed.items() if f is not None} | {
            "metered loop": self._loop,
            "metered concat": self._concat,
            "metered value": self._value,
        }
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: self._metered(test) for name, test in tests.items()}

    def prepare(self, source: str) -> Template:
        """Raises TemplateFault."""
        if len(source.encode("utf-8", "replace")) > self.bounds.template_bytes:
            raise TemplateFault(
                f"The chat template is larger than {self.bounds.template_bytes} bytes."
            )
        try:
            tree = _Rewriter().visit(self.parse(source))
            tree.set_environment(self)
            return Template.from_code(self, self.compile(tree), self.make_globals(None))
        except TemplateFault:
            raise
        except (Exception, RecursionError) as error:  # its parser, or Python's, on a foreign file
            raise TemplateFault(f"The chat template cannot be compiled: {error}") from error

    def run(
        self,
        template: Template,
        values: Mapping[str, Any],
        *,
        input_chars: int,
        now: datetime,
        masks: Masks | None = None,
    ) -> str:
        """Render within bounds.  `masks`: of what stands in the values.  Raises TemplateFault or TemplateRefusal,
        nothing else."""
        self.meter = Meter(self.bounds, input_chars, self.clock)
        self.now, self.masks = now, masks
        try:
            return template.render(values)
        except (TemplateFault, TemplateRefusal):
            raise
        except Exception as error:  # anything that code from a file can raise
            raise TemplateFault(f"The chat template failed with {type(error).__name__}.") from error

    # What the compiled template calls.

    @staticmethod
    def _is_listed(owner: Any, attribute: str) -> bool:
        return all(
            attribute in names for kind, names in _METHODS.items() if isinstance(owner, kind)
        )

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and self._is_listed(obj, attr)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        return None  # `format` is not listed, since a width in it is a size

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.meter.step()
        self.meter.weigh((*args, *kwargs.values()))
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            if obj.__name__ == "replace":
                return self._replace(owner, *args)
            if obj.__name__ == "join":
                return self._join(args[0], owner)
        return self.meter.weigh(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.step()
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" or (operator == "%" and not numbers):
            raise SecurityError(f"operator {operator} is not allowed here")
        if operator == "*" and not numbers:
            count, text = (left, right) if isinstance(left, int) else (right, left)
            if not (isinstance(count, int) and isinstance(text, str)):
                raise SecurityError("only text can be repeated here")
            self.meter.made(max(0, count) * len(text))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > 256:
            raise SecurityError("the number is too large")
        return self.meter.weigh(result)

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps jinja2's pass_context marks
        def run(*args: Any, **kwargs: Any) -> Any:
            self.meter.step()
            return self.meter.weigh(function(*args, **kwargs))

        return run

    @pass_context
    def _finalize(self, context: Context, value: Any) -> str:
        self.meter.step()
        return self.meter.printable(value)

    def _loop(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.meter.step()
            yield item

    def _value(self, value: Any) -> Any:
        return self.meter.weigh(value)

    def _concat(self, items: Iterable[Any]) -> str:
        return "".join(map(self.meter.printable, items))

    def _string(self, value: Any) -> str:
        return self.meter.printable(value)

    def _escape(self, value: Any) -> str:
        return html.escape(self.meter.printable(value))

    def _replace(self, text: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = map(self.meter.printable, (text, old, new))
        found = text.count(old) if count is None else min(text.count(old), max(0, count))
        self.meter.made(len(text) + found * len(new))
        return str(text.replace(old, new, -1 if count is None else max(0, count)))

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        if attribute is not None:
            value = (self.getitem(item, attribute) for item in value)
        pieces = [self.meter.printable(item) for item in self._loop(value)]
        self.meter.made(len(d) * len(pieces))
        return d.join(pieces)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Sequence[str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if isinstance(value, Undefined):
            raise SecurityError("an undefined value has no JSON")
        self.meter.printable(value)
        revealed = value if self.masks is None else self.masks.reveal(value)
        text = json.dumps(
            revealed,
            ensure_ascii=bool(ensure_ascii),
            indent=None if indent is None else max(0, min(8, int(indent))),
            separators=None if separators is None else (str(separators[0]), str(separators[1])),
            sort_keys=bool(sort_keys),
        )
        return text if revealed is value or self.masks is None else self.masks.conceal(text)

    def _strftime_now(self, form: str) -> str:
        if len(form) > 64:
            raise SecurityError("the date format is too long")
        return self.now.strftime(form)


def _raise_exception(message: Any = "") -> NoReturn:
    raise TemplateRefusal(str(message)[:200] if isinstance(message, str) else "")
