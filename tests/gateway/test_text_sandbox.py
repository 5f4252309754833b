from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.text.sandbox import BoundedEnvironment, Bounds, TemplateFault, TemplateRefusal

NOW = datetime(2026, 11, 29, tzinfo=UTC)
MESSAGES = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "yo"}]
GROW = "{% set ns = namespace(s='ab') %}{% for i in range(60) %}"


def frozen_clock() -> float:
    return 0.0


def render(source: str, bounds: Bounds | None = None, **values: Any) -> str:
    environment = BoundedEnvironment(bounds or Bounds(steps=50_000, chars=1_000_000), frozen_clock)
    template = environment.prepare(source)
    return environment.run(template, {"messages": MESSAGES, **values}, input_chars=0, now=NOW)


@pytest.mark.parametrize(
    ("source", "expected"),
    (
        ("{% for m in messages %}{{ loop.index }}/{{ loop.length }};{% endfor %}", "1/2;2/2;"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content|trim }}{% endfor %}", "hi"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}", "assistant"),
        ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
        ("{{ messages[::-1]|map(attribute='role')|join(',') }}", "assistant,user"),
        ("{{ messages[0]['content'].strip().upper() ~ 1 ~ none }}", "HI1None"),
        ("{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f('x') }}{{ f(a='y') }}", "<x><y>"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{{ {'a': ['é', true, none]}|tojson }}", '{"a": ["é", true, null]}'),
        ("{{ messages|tojson(indent=2) }}"[:0] + "{{ [1]|tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ strftime_now('%d %b %Y') }}", "29 Nov 2026"),
        ("{% generation %}kept{% endgeneration %}", "kept"),
        ("  {% if true %}\n  trimmed\n  {% endif %}\n", "  trimmed\n"),
        ("{{ 'a-b-c'.replace('-', '+').split('+', 1)[1] }}", "b+c"),
        ("{{ '='*3 }}{{ 7 % 4 }}{{ messages|length }}", "===32"),
        ("{% set x %}{{ 'a' }}b{% endset %}{{ x }}", "ab"),
        ("{{ missing }}{{ '<' | e }}{{ '<' | safe }}", "&lt;<"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% if x is defined and x is string and 'a' in x %}yes{% endif %}", "yes"),
    ),
)  # fmt: skip
def test_what_chat_templates_use_works(source: str, expected: str) -> None:
    assert render(source, x="a") == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    (
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * 'a' }}",
        "{{ ['a'] * 10000000000 }}",
        "{{ 'a'|center(10000000000) }}",
        "{{ 'a'.center(10000000000) }}",
        "{{ 'a'.zfill(10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%10000000000d'|format(1) }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ 'a'|indent(10000000000) }}",
        "{{ 9**9**9**9 }}",
        "{{ range(100001) }}",
        "{{ lipsum(n=1000000) }}",
        GROW + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        GROW + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
        GROW + "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        GROW + "{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ ns.s == ns.s }}",
        GROW + "{% set ns.s = {'a': ns.s, 'b': ns.s} %}{% endfor %}{{ ns.s|tojson }}",
        GROW + "{% set ns.s = dict(a=ns.s, b=ns.s) %}{% endfor %}",
        GROW + "{% set ns.s = namespace(a=ns.s, b=ns.s) %}{% endfor %}{{ ns.s }}",
        GROW + "{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}",
        GROW + "{% set ns.s = ns.s|replace('', ns.s) %}{% endfor %}",
        GROW + "{% set ns.s = ns.s.join(ns.s) %}{% endfor %}",
        GROW + "{% set ns.s = ns.s|join(ns.s) %}{% endfor %}",
        GROW + "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
        "{% set ns = namespace(s=9) %}{% for i in range(99) %}{% set ns.s = ns.s * ns.s %}{% endfor %}",
        "{% macro f() %}{% set ns.l = varargs %}{% endmacro %}{% set ns = namespace() %}{% for i in range(60) %}{{ f(ns.l, ns.l) }}{% endfor %}{{ ns.l == ns.l }}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set x %}{% for i in range(10000) %}" + "k" * 1000 + "{% endfor %}{% endset %}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "{% for i in [[1]] recursive %}{{ loop(i) }}{% endfor %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "+".join("1" * 5000) + " }}",
        "x" * (128 * 1024 + 1),
        "{{ strftime_now('%c' * 100) }}",
    ),
)  # fmt: skip
def test_growth_without_end_is_refused(source: str) -> None:
    with pytest.raises(TemplateFault):
        render(source)


@pytest.mark.parametrize(
    "source",
    (
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}x{{ ''['__class__'].x }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ messages|attr('__class__') }}",
        "{{ (messages|map(attribute='__class__')|list)[0].x }}",
        "{{ 'a'.encode() }}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% from 'x' import y %}",
        "{% extends 'x' %}",
        "{% block x %}{% endblock %}",
        "{% autoescape true %}{% endautoescape %}",
        "{{ messages[0].items() }}",
        "{{ raise_exception }}",
        "{% nonsense %}",
        "{{ unclosed",
    ),
)
def test_what_no_template_needs_is_refused(source: str) -> None:
    with pytest.raises(TemplateFault):
        render(source)


@pytest.mark.parametrize(
    "source", ("{{ 'a' * 10000000000 }}", "{{ ('a' * 9999).join('b' * 9999) }}")
)
def test_text_is_charged_before_it_is_made(source: str) -> None:
    with pytest.raises(TemplateFault, match="too much text"):
        render(source)


def test_time_runs_out() -> None:
    ticks = iter(range(10_000))
    environment = BoundedEnvironment(Bounds(seconds=50), lambda: float(next(ticks)))
    template = environment.prepare("{% for i in range(1000) %}{% endfor %}")
    with pytest.raises(TemplateFault, match="too long"):
        environment.run(template, {}, input_chars=0, now=NOW)


def test_a_slow_test_in_a_filter_is_metered() -> None:
    with pytest.raises(TemplateFault, match="steps"):
        render("{{ range(100000)|select('in', range(9)|list)|list|length }}")


def test_each_render_has_its_own_meter() -> None:
    environment = BoundedEnvironment(Bounds(steps=100), frozen_clock)
    template = environment.prepare("{% for i in range(40) %}{{ i }}{% endfor %}")
    for _ in range(5):
        assert environment.run(template, {}, input_chars=0, now=NOW).endswith("39")


def test_a_template_may_refuse_in_its_own_words() -> None:
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
