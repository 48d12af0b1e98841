"""Every command's tables on narrow terminals, as tables_60.txt and tables_80.txt have them."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import attrs
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import kafkagroup.cli
from kafkagroup import Node, OffsetAndMetadata, TopicPartition
from kafkagroup.admin import (
    GroupDescription,
    GroupList,
    GroupListing,
    GroupState,
    GroupType,
    MemberDescription,
    OffsetPlan,
    OpenTransaction,
    PartitionLag,
    ProducerDescription,
    TopicDescription,
    TransactionDescription,
    TransactionList,
    TransactionListing,
    TransactionState,
)
from kafkagroup.admin.reset import OffsetChange
from kafkagroup.admin.values import PartitionDescription
from kafkagroup.cli._app import app
from kafkagroup.cli._connection import Connection
from kafkagroup.cli._lag_view import live_table
from kafkagroup.cli._table import fold
from kafkagroup.cli._view import add_row, new_table
from kafkagroup.cli.lag import _fitting
from kafkagroup.wire import Subscription

CLI = Path(kafkagroup.cli.__file__).parent

# ---------------------------------------------------------------- every command

TOPIC = "payments-eu-west-1.settlements.v2"
LAGS = {
    TopicPartition(TOPIC, 7): PartitionLag(
        committed=18_000_000_123, start=0, end=18_000_104_123, lag=104_000, seconds=86_400.25
    ),
    TopicPartition(TOPIC, 128): PartitionLag(committed=5, reason="there is no such partition"),
}
BROKER = Node(1, "broker-1.kafka.example.com", 9092)
MEMBERS = tuple(
    MemberDescription(
        member_id=f"settlements-worker-{number}-6f0e1c52-8a53-4b1f-9a40-9f4f6e1d2c3b",
        client_id=f"settlements-worker-{number}",
        host=f"/10.20.30.{number}",
        subscription=Subscription(topics=(TOPIC,)),
        member_epoch=1200,
        partitions=(tp,),
    )
    for number, tp in enumerate(LAGS, 1)
)
GROUP = GroupDescription(
    group_id="settlements",
    type=GroupType.CONSUMER,
    state=GroupState.STABLE,
    protocol_type="consumer",
    protocol_name="uniform",
    members=MEMBERS,
    coordinator=BROKER,
    group_epoch=1200,
    assignment_epoch=1200,
)
LISTED = GroupListing(
    group_id="settlements-of-all-payments-in-europe",
    type=GroupType.CONSUMER,
    state=GroupState.PREPARING_REBALANCE,
    protocol_type="consumer",
    coordinator=BROKER,
)
DESCRIBED = TopicDescription(
    name=TOPIC,
    topic_id=UUID(int=7),
    internal=False,
    partitions=tuple(
        PartitionDescription(
            partition=number,
            leader=BROKER,
            leader_epoch=3,
            replicas=(101, 102, 103),
            in_sync_replicas=(101, 102),
            offline_replicas=(103,),
        )
        for number in (0, 128)
    ),
)
TRANSACTION = TransactionDescription(
    transactional_id="settlements-of-all-payments-in-europe-17",
    state=TransactionState.ONGOING,
    producer_id=9_000_000_123,
    producer_epoch=1200,
    timeout=60.0,
    started_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
    partitions=tuple(TopicPartition(TOPIC, number) for number in (7, 8, 128)),
    coordinator=BROKER,
)
PRODUCER = ProducerDescription(
    producer_id=9_000_000_123,
    producer_epoch=1200,
    last_sequence=2_000_000_000,
    last_written_at=datetime(2026, 1, 31, 12, 0, 1, tzinfo=UTC),
    coordinator_epoch=12,
    transaction_start_offset=18_000_000_123,
)
OPEN = OpenTransaction(
    partition=TopicPartition(TOPIC, 128),
    producer=PRODUCER,
    start_offset=18_000_000_123,
    transaction=TRANSACTION,
)
OFFSETS = OffsetPlan(
    group_id="settlements",
    changes={
        tp: OffsetChange(OffsetAndMetadata(18_000_000_123), OffsetAndMetadata(17_999_000_000))
        for tp in LAGS
    },
)
SPEC = {
    "members": {
        "a": {
            "topics": ["orders"],
            "owned": {"orders": [*range(9)]},
            "generation": 7,
            "capacity": 2,
        },
        "b-0001": {
            "topics": ["orders"],
            "instance_id": "settlements-worker-2.example.com",
            "owned": {"orders": [0, 1]},
            "generation": 6,
        },
    },
    "topics": {"orders": 16},
}

COMMANDS: dict[str, list[object]] = {
    "groups": [GroupList(groups=(LISTED,))],
    "lag settlements": [({"settlements": LAGS}, [], {})],
    "describe settlements": [({"settlements": GROUP}, {"settlements": LAGS}, {})],
    f"topics describe {TOPIC}": [{TOPIC: DESCRIBED}],
    "topics list": [(DESCRIBED, attrs.evolve(DESCRIBED, name=TOPIC * 3))],
    "transactions list": [
        TransactionList(
            transactions=(
                TransactionListing(
                    transactional_id=TRANSACTION.transactional_id,
                    producer_id=TRANSACTION.producer_id,
                    state=TRANSACTION.state,
                    coordinator=BROKER,
                ),
            )
        )
    ],
    "transactions describe id": [{"id": TRANSACTION}],
    f"transactions producers --topic {TOPIC}": [{TopicPartition(TOPIC, 128): (PRODUCER,)}],
    "transactions find-hanging --all": [
        {TopicPartition(TOPIC, 128): (OPEN, attrs.evolve(OPEN, transaction=None))}
    ],
    "reset-offsets settlements --shift-by -10 --dry-run": [OFFSETS, {}],
    "plan --spec - --assignor cooperative-sticky": [],
    "plan --spec - --assignor range --assignor naive --assignor weighted-sticky": [],
}
"""The responses of the cluster to each command."""


def shown(command: str, monkeypatch: pytest.MonkeyPatch, width: int) -> str:
    responses = iter(COMMANDS[command])
    monkeypatch.setattr(Connection, "run", lambda *_: next(responses))
    runner = CliRunner(env={"COLUMNS": str(width), "NO_COLOR": "1"})
    done = runner.invoke(app, command.split(), input=json.dumps(SPEC))
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return done.stdout


def live(width: int) -> str:
    history = [{tp: one.lag and one.lag // n for tp, one in LAGS.items()} for n in range(30, 0, -1)]
    file = io.StringIO()
    Console(file=file, width=width).print(live_table("settlements", LAGS, history, 5))
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80])
def test_every_table_fits(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {command: shown(command, monkeypatch, width) for command in COMMANDS}
    parts["lag settlements --watch"] = live(width)
    texts = [f"$ kafkagroup {command}\n{text}" for command, text in parts.items()]
    page = re.sub(" +$", "", "".join(texts), flags=re.MULTILINE)
    assert page == Path(__file__).with_name(f"tables_{width}.txt").read_text()
    assert max(cell_len(line) for text in parts.values() for line in text.splitlines()) <= width


@pytest.mark.parametrize(("width", "rows"), [(60, 6), (140, 15)])
def test_a_live_view_fits_the_height(width: int, rows: int) -> None:
    """Its end has the totals; folded rows and the names of columns that are left out need lines."""
    lags = {
        TopicPartition(TOPIC, p): PartitionLag(committed=0, end=p, lag=p, seconds=1.0)
        for p in range(100, 140)
    }
    terminal = Console(width=width, height=24, file=io.StringIO())
    terminal.print(_fitting(terminal, {"settlements": lags}, {"settlements": []}, ["at 12:00"]))
    lines = terminal.file.getvalue().splitlines()
    assert len(lines) in (23, 24)
    assert f"{40 - rows} others" in " ".join(lines)
    assert lines[-1] == "at 12:00"


def test_every_table_is_among_them() -> None:
    """A new one needs a command in COMMANDS."""
    texts = {path.stem: path.read_text() for path in CLI.glob("*.py")}
    assert {name for name, text in texts.items() if "= new_table(" in text} == {
        *("_describe_view", "_lag_view", "_plan_view"),
        *("groups", "reset_offsets", "topics", "transactions"),
    }
    assert [name for name, text in texts.items() if "rich.table" in text] == ["_table"]


# ---------------------------------------------------------------- any table

NUMBERS = st.integers(-1, 2**63 - 1).map(str) | st.floats(0, 1e9).map("{:.3f}".format)
WORDS = st.text(st.sampled_from("abcdé表-/._ "), max_size=60)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    """The names of number columns, and rows of two texts with a number of each column between."""
    names = [f"{name} of it" for name in "abcdef"[: draw(st.integers(1, 6))]]
    row = st.tuples(WORDS, *(NUMBERS for _ in names), WORDS)
    return names, [list(one) for one in draw(st.lists(row, min_size=1, max_size=5))]


@settings(max_examples=100, deadline=None)
@given(tables(), st.integers(40, 140))
def test_no_number_is_broken(table: tuple[list[str], list[list[str]]], width: int) -> None:
    names, rows = table
    first, *others = names
    made = new_table("title", "key", *names, "why", right=names, drop=others)
    for row in rows:
        add_row(made, *row)
    file = io.StringIO()
    Console(file=file, width=width).print(made)
    body, _, note = file.getvalue().partition("adds: ")
    left_out = set(" ".join(note.split()).split(", ")) - {""}
    assert max(map(cell_len, file.getvalue().splitlines())) <= width
    assert first not in left_out
    shown = [
        row[index] for row in rows for index, name in enumerate(names, 1) if name not in left_out
    ]
    # Neither names nor texts have digits.
    assert Counter(re.findall(r"\S*\d\S*", body)) == Counter(shown)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a word and more", ["a word and", "more"]),
        ("orders 0-3 17 18", ["orders 0-3", "17 18"]),
        ("payments.eu/17", ["payments.", "eu/17"]),
        ("lag 17.2505", ["lag", "17.2505"]),
        ("abcdefghijklm", ["abcdefghij", "klm"]),
        ("a abcdefghijklm n", ["a", "abcdefghij", "klm n"]),
        ("表表表表表表", ["表表表表表", "表"]),
        ("", []),
    ],
)
def test_text_is_folded_between_words_first(text: str, lines: list[str]) -> None:
    assert fold(text, 10).splitlines() == lines


def test_a_table_without_rows_has_its_head() -> None:
    table = new_table("0 groups", *("group", "type", "state", "coordinator"), drop=("type",))
    file = io.StringIO()
    Console(file=file, width=30).print(table)
    assert [line.rstrip() for line in file.getvalue().splitlines()] == [
        "0 groups",
        "",
        " group   state   coordinator",
        " ───────────────────────────",
        "",
        "A wider terminal or --json",
        "adds: type",
        "",
    ]
