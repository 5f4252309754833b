"""A report of an audit as one page for people: the verdict, the matrix, the distributions drawn.

A pure function of the report, so that the signed digest of the page binds it.  Self-contained: no script,
no address, nothing loaded; everything from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from gateway.cli.audit_draw import ecdfs, histogram
from gateway.cli.show import instant
from security.audit_report import Kind, samples_of
from security.timing_audit import CellName, Level, Pair

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1d21;--soft:#5c6370;--line:#d5d9e0;--paper:#fff;--a:#0b62c4;--b:#b4500b;
--good:#16703a;--bad:#b3182a;--open:#8a6100;--band:#16703a22}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ec;--soft:#9aa3b2;--line:#363c47;--paper:#15171b;--a:#6db3ff;
--b:#ffa561;--good:#5fd08c;--bad:#ff7b86;--open:#e5b94c;--band:#5fd08c22}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1100px;margin:2rem auto;
padding:0 1rem}h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right}.soft{color:var(--soft)}.wide{overflow-x:auto}
.verdict{border-left:4px solid;padding:.4rem .9rem;font-size:1.05rem}.good{color:var(--good)}.bad{color:var(--bad)}
.open{color:var(--open)}.cells{display:grid;grid-template-columns:repeat(auto-fill,minmax(320px,1fr));gap:1rem}
figure{margin:0}figcaption{font-size:.85rem}svg{width:100%;height:auto}
svg text{font-size:10px;fill:var(--soft)}svg .end{text-anchor:end}polyline{fill:none;stroke-width:1.5}
.secret{stroke:var(--a)}.control{stroke:var(--b);stroke-dasharray:4 2}.key-secret{color:var(--a)}
.key-control{color:var(--b)}.bar{fill:var(--a)}.band{fill:var(--band)}.axis{stroke:var(--line)}.zero{stroke:var(--soft)}
"""
_KIND_OF_WORD = {"PASS": "good", "FAIL": "bad", "holds": "good", "LEAKS": "bad"}


def page(report: Mapping[str, Any]) -> bytes:
    """UTF-8."""
    body = _timing(report) if report["kind"] == Kind.TIMING.value else _isolation(report)
    verdict = report["verdict"]
    title = f"Lockgate {report['kind']} audit: {verdict['outcome']}"
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>"
        f'<p class="verdict {_class(verdict["outcome"])}">{escape(verdict["reason"])}</p>'
        f"{_about(report)}{body}"
        '<p class="soft">This page is bound by its digest to the signed report beside it: '
        "<code>lockgate audit report verify FILE.json</code></p></body></html>\n"
    )
    return text.encode()


def _about(report: Mapping[str, Any]) -> str:
    rows = {
        "server": report["target"],
        "model": report["model"],
        "made": instant(report["made_at_ms"] // 1000),
        "by": f"lockgate {report['lockgate']}",
        "seed": report["seed"],
    }
    return _table(
        ("", ""), [[escape(str(name)), escape(str(value))] for name, value in rows.items()]
    )


def _timing(report: Mapping[str, Any]) -> str:
    verdict = report["verdict"]
    figures = {
        "a hit saves (median)": _ms(verdict["gap_ns"]),
        "noise of one request": _ms(verdict["sigma_ns"]),
        "equal means within ±": _ms(verdict["margin_ns"]),
        "smallest difference seen nine times in ten": _ms(verdict["detectable_ns"]),
        "pairs of each cell": f"{report['design']['pairs']:,}",
        "tokens of the secret prefix": f"{report['design']['prefix_tokens']:,}",
    }
    rows = [
        [
            escape(str(CellName(Level(f["level"]), f["victims"]))),
            f"{f['pairs']:,}",
            _ms(f["median_ns"]),
            f"{_ms(f['low_ns'])} … {_ms(f['high_ns'])}",
            _p(f["wilcoxon_p"]),
            _p(f["sign_p"]),
            _p(f["adjusted_p"]),
            _p(f["ks_p"]),
            f"{f['auc']:.3f}",
            f"{f['reported']:,}",
        ]
        for f in verdict["findings"]
    ]
    heads = (
        "cell",
        "pairs",
        "median gap",
        "99 % of it",
        "Wilcoxon p",
        "sign p",
        "Holm p",
        "KS p",
        "AUC",
        "told cached",
    )
    drawn = "".join(
        _cell(name, pairs, verdict["margin_ns"])
        for name, pairs in samples_of(report).items()
        if pairs
    )
    return (
        "<h2>Figures</h2>"
        + _table(("", ""), [[escape(name), value] for name, value in figures.items()])
        + '<h2>Matrix</h2><p class="soft">Gap: time to the first token with a fresh control, less that '
        "with the prefix that somebody sent before. Above zero: the prefix was known.</p>"
        + _table(heads, rows)
        + '<h2>Distributions</h2><p class="soft">Left: times to the first token, <span class="key-secret">'
        'the prefix</span> and <span class="key-control">its control</span>. Right: gaps of the pairs; '
        f'shaded is what counts as none.</p>{drawn}'
    )  # fmt: skip


def _cell(name: CellName, pairs: Sequence[Pair], margin_ns: float | None) -> str:
    secret, control = [p.secret_ns / 1e6 for p in pairs], [p.control_ns / 1e6 for p in pairs]
    gaps = [c - s for s, c in zip(secret, control, strict=True)]
    caption = escape(str(name))
    return (
        f'<h3>{caption}</h3><div class="cells"><figure>'
        f"{ecdfs((('secret', secret), ('control', control)), 'ms')}</figure><figure>"
        f"{histogram(gaps, 'ms', margin_ns / 1e6 if margin_ns else None)}</figure></div>"
    )


def _isolation(report: Mapping[str, Any]) -> str:
    rows = []
    for row, state in zip(report["rows"], report["states"], strict=True):
        halves = [
            "–"  # noqa: RUF001 — a dash for nothing
            if half is None
            else f"{escape(half['says'])}: {half['reused']} of {half['tried']} reused"
            for half in (row["same"], row["other"])
        ]
        remark = " ".join(filter(None, (row["held_by"], row["remark"])))
        rows.append(
            [
                escape(row["dimension"]),
                f'<b class="{_class(state)}">{escape(state)}</b>',
                *halves,
                escape(remark),
            ]
        )
    return "<h2>Matrix</h2>" + _table(
        ("dimension", "", "same scope (must reuse)", "other scope (must not)", "remark"), rows
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """`rows` are escaped already."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads) if any(heads) else ""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _class(word: str) -> str:
    return _KIND_OF_WORD.get(word, "open")


def _ms(ns: float | None) -> str:
    return "unknown" if ns is None else f"{ns / 1e6:,.3f} ms"


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
