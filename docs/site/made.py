"""Parts of pages that are made from the code at each build, so that they cannot go stale."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from inspect import getdoc, getsource
from pathlib import Path
from typing import Any

import click
import docstrings
from measured import ratios, rebalances
from option_list import options_of_a_consumer, options_of_a_producer

import kafkagroup
from kafkagroup import errors, events
from kafkagroup.cli._app import app
from kafkagroup.exporters._instruments import INSTRUMENTS
from kafkagroup.member import classic_state as state
from kafkagroup.member import consumer_state
from kafkagroup.runtime.consume import health
from kafkagroup.spark.client_options import REFUSED_BY_SINK, REFUSED_BY_SOURCE, WITHOUT_EFFECT
from kafkagroup.wire.error_codes import FETCH_ACTIONS, RETRIED_LOOK_UPS, FetchAction

__all__ = [
    "causes",
    "commands",
    "error_tree",
    "errors_one_by_one",
    "metrics",
    "moves",
    "options_of_a_consumer",
    "options_of_a_producer",
    "problems",
    "ratios",
    "rebalances",
    "refusals",
    "spark_options",
]

OPTIONS = {
    Path(__file__).parent.parent / "options.md": options_of_a_consumer,
    Path(__file__).parent.parent / "producer-options.md": options_of_a_producer,
}
"""Page -> what returns its list."""

_REMEDIES = {
    "KafkaGroupError": "Catch it if you treat all errors of Kafka in the same way.",
    "ConfigurationError": "Correct the option or argument that the message names.",
    "IllegalStateError": "Fix the caller: it called too early or too late.",
    "NotStartedError": "Use `async with`, or call `start()` before anything else.",
    "ClosedError": "Stop using the client, or start it first. Iteration ends without this error.",
    "NotAssignedError": "The group has rebalanced. Check `assignment()` first, or use the"
    " callbacks.",
    "LocalProtocolError": "Report a bug: nothing was sent, and nothing is lost.",
    "RemoteProtocolError": "The client retries on a new connection. If it persists, check that"
    " Kafka listens at that address, and that the port is not a TLS port used without TLS.",
    "DecodeError": "As for RemoteProtocolError. If the cluster is healthy, report a bug.",
    "LimitExceededError": "Raise the option that the message names, if the size is right.",
    "CorruptRecordError": "The log on that broker is damaged. Repair the replica; to continue"
    " without the batch, `seek` to the error's `next_offset`.",
    "UnsupportedVersionError": "Brokers from 2.4 on are supported, for KIP-848 from 4.0 on. Update"
    " the broker, or set another `group_protocol`.",
    "AuthenticationError": "At the start correct the credentials; later, correct them at the broker"
    " or at their source, and poll on: [below](#when-a-broker-refuses-the-client).",
    "TlsError": "The message has the side that refused, and why: name, chain, date, version. Files"
    " that you renew are read again.",
    "TransportError": "The client retries its own requests. If your call raises it, call again.",
    "ConnectionLostError": "As for TransportError. If it always occurs, check port, firewall and"
    " `advertised.listeners`.",
    "RequestTimeoutError": "As for TransportError. If it occurs often, the broker is overloaded, or"
    " `request_timeout_ms` is too small.",
    "NoBrokersAvailableError": "Check that `bootstrap_servers` are right, and reachable from"
    " this machine.",
    "ClusterChangedError": "Correct `bootstrap_servers`, or what they resolve to; the client then"
    ' continues. If the other cluster replaces yours, set `on_cluster_change="adopt"`. Use a plan,'
    " exported offsets or a checkpoint with the cluster that they are from.",
    "BrokerError": "See `code`, `name` and `retriable`. The client has retried retriable errors."
    " After one of a refused partition, poll on: [below](#when-a-broker-refuses-a-partition).",
    "AuthorizationError": "Grant the ACL: `operation` on `resource`. A consumer then reads on.",
    "RecordRefusedError": "Correct the record at `index`. Those before it were not written either.",
    "FencedError": "Two processes have the same `group_instance_id`: give each its own.",
    "JoinFailedError": "The message has the reason, such as members of another library in the"
    " group: stop those first. Then start again.",
    "CommitFailedError": "Continue: the new owner of `partitions` starts at the last commit. If it"
    " occurs often, records take longer than `max_poll_interval_ms` or the rebalance timeout. Drop"
    " offsets of an earlier assignment; to rewind a group, `seek` before the commit.",
    "OffsetOutOfRangeError": "Retention deleted records that the group had not read. `seek`,"
    " or set `auto_offset_reset`. Every call raises it until then.",
    "NoOffsetError": "`seek` in each of its `partitions`; or commit a start with `Admin`, or set"
    " `auto_offset_reset`, before the consumer starts. Every call raises it until then.",
    "ChangesRefusedError": "`errors` has the reason for each topic, group or partition, and"
    " `done` what was changed. Repeat the call for those whose reason has passed.",
    "NotWrittenError": "`why` has the reason. If `is_maybe_written`, look the record up, or accept"
    " that it may be in the log twice when you send it again; else it is not in the log. If"
    " `is_of_another_record`, correct that one, and send both.",
    "BufferFullError": "Wait with `await ready()`, or `await send()`, which does. If it occurs"
    " often, brokers are slower than the application: `metrics()` has the figures; a larger"
    " `buffer_memory` only delays it.",
    "ProducerFencedError": "Create another producer, once no other one has the `transactional_id`."
    " If the message names the timeout, shorten the transactions, or raise"
    " `transaction_timeout_ms`.",
    "TransactionAbortedError": "`why` has the reason. Abort, and do the work again in another"
    " transaction.",
    "TransactionOutcomeUnknownError": "Read the committed offsets before you do the work again.",
    "DeserializationError": "Store `error.record` elsewhere, then `seek` past it.",
}
"""Error -> what an operator or a caller should do."""


def spark_options() -> str:
    """The options of Kafka's clients without effect in Spark, and those that are refused."""
    ignored = [
        "Accepted without effect, with one warning that names the option:\n",
        "| option | why, or what to use instead |\n|---|---|",
        *(f"| {names} | {why} |" for why, names in _by_reason(WITHOUT_EFFECT)),
    ]
    refused = ["\nRefused, because the query would mean something else:\n"]
    refused += ["| option | of | why, or what to use instead |\n|---|---|---|"]
    both = {n: why for n, why in REFUSED_BY_SOURCE.items() if n in REFUSED_BY_SINK}
    for kind, reasons in (
        ("source and sink", both),
        ("source", {n: why for n, why in REFUSED_BY_SOURCE.items() if n not in both}),
        ("sink", {n: why for n, why in REFUSED_BY_SINK.items() if n not in both}),
    ):
        refused += [f"| {names} | {kind} | {why} |" for why, names in _by_reason(reasons)]
    return "\n".join([*ignored, *refused])


def _by_reason(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each reason and the options with it."""
    options: dict[str, list[str]] = {}
    for name, why in reasons.items():
        options.setdefault(why, []).append(f"`{name}{'*' * name.endswith('.')}`")
    return [
        (why, ", ".join(options[why])) for why in sorted(options, key=lambda why: (not why, why))
    ]


def error_tree() -> str:
    """Return the names of all errors as a tree."""
    found = re.search(r"```\n(.*?)```", errors.__doc__ or "", re.DOTALL)
    assert found
    names = re.sub(r"(?<=\w) *(\(.*?\))?  .*", "", found[1])
    return f"```text\n{names}```"


def errors_one_by_one() -> str:
    """Each error: what it means by its docstring, and what to do."""
    names = [n for n in errors.__all__ if n in _REMEDIES]
    tree = error_tree()
    names.sort(key=lambda name: re.search(rf"\b{name}\b", tree).start())  # type: ignore[union-attr]
    parts = []
    for name in names:
        said = (getdoc(getattr(errors, name)) or "").strip()
        parts.append(f"## {name}\n\n{said}\n\n**What to do.** {_REMEDIES[name]}\n")
    return "\n".join(parts)


_REACTIONS = {
    FetchAction.RETRY: "asks the same broker again, after a back-off",
    FetchAction.REFRESH: "refreshes the metadata, and asks the leader that it names",
    FetchAction.RESET: "applies `auto_offset_reset` to the position of a fetch; as the next row for"
    " the other two requests",
    FetchAction.RAISE: "raises the error, and asks again after a back-off",
}


def refusals() -> str:
    """What the client does after each error code about a partition."""
    leader, coordinator = "Fetch, ListOffsets, OffsetForLeaderEpoch", "OffsetFetch"
    rows = [
        (leader, _codes(c for c, action in FETCH_ACTIONS.items() if action is chosen), text)
        for chosen, text in _REACTIONS.items()
    ]
    rows[-1] = (leader, f"{rows[-1][1]}, every other code", rows[-1][2])
    rows += [
        (
            coordinator,
            _codes(RETRIED_LOOK_UPS),
            "asks again after a back-off; raises an unknown topic's error at the fifth attempt",
        ),
        (coordinator, "every other code", _REACTIONS[FetchAction.RAISE]),
    ]
    return _table(("response to", "code", "the client"), rows)


def _codes(codes: Iterable[int]) -> str:
    return ", ".join(f"`{errors.error_name(code)}`" for code in sorted(codes))


def write_options() -> None:
    """Update the lists of the pages of options."""
    for page, listed in OPTIONS.items():
        head = page.read_text("utf-8").partition("- **")[0]
        page.write_text(head + listed(), "utf-8")


STUB = docstrings.PACKAGE / "__init__.pyi"


def stub() -> str:
    """What type checkers read in place of the table of public names in `kafkagroup/__init__.py`."""
    lines = ["# Written by docs/site/made.py from the table in __init__.py.", ""]
    for home, names in vars(kafkagroup)["_HOMES"].items():
        line = f"from kafkagroup.{home} import {', '.join(names)}"
        if len(line) > 100:
            listed = "".join(f"    {name},\n" for name in names)
            line = f"from kafkagroup.{home} import (\n{listed})"
        lines.append(line)
    listed = "".join(f'    "{name}",\n' for name in kafkagroup.__all__)
    lines += ["", f"__all__ = [\n{listed}]", "", "__compiled__: bool", "__version__: str", ""]
    return "\n".join(lines)


def metrics() -> str:
    """All that the exporters tell."""
    return _table(
        ("Prometheus", "unit", "meaning"),
        (
            (
                f"`kafkagroup_{i.name}{'_total' if i.is_counter else ''}`",
                i.unit,
                i.description + "".join(f", by {label}" for label in i.labels),
            )
            for i in INSTRUMENTS
        ),
    )


def causes() -> str:
    """Why a group rebalances, as events and metrics say."""
    return _members(events.RebalanceCause)


def problems() -> str:
    """What `health()` finds."""
    return _members(health.HealthProblem)


def moves() -> str:
    """The phases of both protocols in words, and where each may go."""
    parts = []
    for title, module in (("Classic", state), ("KIP-848", consumer_state)):
        said = _docstrings(module.Phase)
        rows = [
            (
                f"`{phase.value}`",
                said[phase.name],
                ", ".join(p.value for p in module.Phase if p in module.MOVES[phase]),
            )
            for phase in module.Phase
        ]
        parts.append(f"### {title}\n\n" + _table(("phase", "", "may go to"), rows))
    return "\n".join(parts)


def commands() -> str:
    """The help of every command, and of every command below it."""
    parts = [_help("kafkagroup", app)]
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        parts.append(f"## {name}\n\n" + _help(f"kafkagroup {name}", command))
        if isinstance(command, click.Group):
            for child, below in sorted(command.commands.items()):
                parts.append(f"### {name} {child}\n\n" + _help(f"kafkagroup {name} {child}", below))
    return "\n".join(parts)


def _help(name: str, command: click.Command) -> str:
    # As below the program, which gives its commands `-h`. click keeps a command's help option.
    settings = {**app.context_settings, **command.context_settings}
    context = click.Context(
        command, info_name=name, max_content_width=84, terminal_width=84, **settings
    )
    return f"```text\n{command.get_help(context)}\n```\n"


def _members(kind: type[Enum]) -> str:
    said = _docstrings(kind)
    return _table(("", "meaning"), ((f"`{m.value}`", said[m.name]) for m in kind))


def _docstrings(kind: type[Enum]) -> dict[str, str]:
    """Member -> what stands beneath it in the source, on one line."""
    found = re.findall(r'^    (\w+) = .*\n    """((?:.|\n)*?)"""', _source(kind), re.MULTILINE)
    said = {name: " ".join(text.split()) for name, text in found}
    assert said.keys() == {m.name for m in kind}, f"{kind}: one has no docstring"
    return said


def _source(kind: type) -> str:
    """The source of a class. `inspect.getsource` looks for a public one in the module that it
    reports, which is not the one that it stands in."""
    if kind.__module__ != "kafkagroup":
        return getsource(kind)
    homes = (module for name, module in sys.modules.items() if name.startswith("kafkagroup."))
    sources = (getsource(home) for home in homes if vars(home).get(kind.__name__) is kind)
    starts = rf"^class {kind.__name__}\b.*\n(?:(?: .*)?\n)*"
    return next(found[0] for text in sources if (found := re.search(starts, text, re.MULTILINE)))


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = (head, tuple("---" for _ in head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    write_options()
    STUB.write_text(stub(), "utf-8")
    docstrings.write()
