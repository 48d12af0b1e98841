"""The HTML page of the report. Names of groups and topics are untrusted: all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from kafkagroup.errors import printable
from kafkagroup.spark.report.facts import Facts, Group
from kafkagroup.spark.report.plots import plot

__all__ = ["render"]

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>Groups</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 72rem;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: 13px; margin: .6rem 0; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; border-bottom: 1px solid #e3e3e3;
  vertical-align: top; white-space: nowrap; }
td:first-child:not(.n) { white-space: normal; overflow-wrap: anywhere; min-width: 14rem; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.OK { color: #1a7f37; } .WARN { color: #9a6700; }
.STOP, .STALL, .REWIND { color: #cf222e; font-weight: 600; }
svg { max-width: 100%; height: auto; } .note { color: #666; font-size: 13px; }
</style>
</head>
<body>
"""


def render(facts: Facts) -> str:
    """Return the page: stuck partitions first, then all groups, then each group with its plots."""
    counted = (
        "Rebalances are counted since the log of groups can be read without a gap;"
        " generations without members do not count."
    )
    body = [
        "<h1>Groups</h1>",
        f'<p class="note">As of {_time(facts.made_at)}, all times in UTC. {counted}</p>',
        "<h2>Stuck partitions</h2>",
        _stuck(facts) if facts.stuck else "<p>None.</p>",
        "<h2>Health</h2>",
        _health(facts.groups),
    ]
    if facts.others:
        body.append(f'<p class="note">{facts.others} more groups are in the tables.</p>')
    body += [_group(group, facts.made_at) for group in facts.groups]
    return _HEAD + "\n".join(body) + "\n</body>\n</html>\n"


def _stuck(facts: Facts) -> str:
    return _table(
        ("group", "partition", "status", "lag", "seconds behind", "last commit"),
        [
            (
                _text(row.group),
                _text(f"{row.topic}/{row.partition}"),
                _status(row.status),
                _number(row.lag),
                _number(row.seconds),
                _time(row.last_commit),
            )
            for row in facts.stuck
        ],
        numbers=(3, 4),
    )


def _health(groups: Iterable[Group]) -> str:
    return _table(
        (
            "group",
            "kind",
            "status",
            "members",
            "lag",
            "seconds behind",
            "rebalances",
            "an hour",
            "unstable",
            "skew",
            "skew of lag",
            "counted since",
        ),
        [
            (
                _text(group.name),
                _text(health["kind"] or "offsets only"),
                _state(health),
                _number(health["members"]),
                _number(health["lag"]),
                _number(health["seconds"]),
                _number(health["rebalances"]),
                _number(health["rebalances_per_hour"]),
                _share(health["unstable_share"]),
                _number(health["skew"]),
                _number(health["lag_skew"]),
                _time(health["coverage"]),
            )
            for group in groups
            for health in (group.health,)
        ],
        numbers=range(3, 11),
    )


def _group(group: Group, until: datetime) -> str:
    parts = [f"<h2>{_text(group.name)} {_state(group.health)}</h2>"]
    if svg := plot(group, until):
        parts.append(svg)
    if group.rebalances:
        rows = [
            (
                _number(rebalance.generation),
                _text(rebalance.cause),
                _time(rebalance.started),
                _length(rebalance.started, rebalance.ended),
                _number(rebalance.members),
                _number(rebalance.moved),
            )
            for rebalance in reversed(group.rebalances)
        ]
        heads = ("generation", "cause", "started", "seconds", "members", "partitions moved")
        parts.append(
            f"<details open><summary>{len(rows)} generations, the last first</summary>"
            f"{_table(heads, rows, numbers=(0, 3, 4, 5))}</details>"
        )
    return "\n".join(parts)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Return an HTML table. The cells of `rows` must be HTML already."""
    right = set(numbers)

    def cells(tag: str, row: Sequence[str]) -> str:
        html = (
            f"<{tag}{' class=n' if n in right else ''}>{cell}</{tag}>" for n, cell in enumerate(row)
        )
        return f"<tr>{''.join(html)}</tr>"

    return "\n".join(
        ["<table>", cells("th", heads), *(cells("td", row) for row in rows), "</table>"]
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _status(status: str | None) -> str:
    return f'<span class="{_text(status)}">{_text(status)}</span>' if status else "unknown"


def _state(health: Mapping[str, Any]) -> str:
    """Return the status of a group, or since when it is gone."""
    gone = health["gone_at"]
    return _status(health["status"]) if gone is None else f"gone since {_time(gone)}"


def _time(time: datetime | None) -> str:
    return "never" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"


def _length(started: datetime, ended: datetime | None) -> str:
    return "not ended" if ended is None else f"{(ended - started).total_seconds():.3f}"


def _share(share: Any) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _number(number: Any) -> str:
    """Return a number, rounded for reading; "" if it is unknown."""
    if number is None:
        return ""
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"
