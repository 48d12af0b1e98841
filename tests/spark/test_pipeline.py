"""The whole pipeline: groups of real Kafka that rebalance, fall behind and stop, and their
tables."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from brokers import numbered, set_heartbeat_interval
from doc_blocks import ROOT

from kafkagroup import ConfigurationError, TopicPartition
from kafkagroup.assign.loads import decode_loads

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.spark import pipeline
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.stored_tables import Tables
from kafkagroup.spark.weights import weights, write_loads

HEARTBEAT_MS = 100
GROUPS = ("pipe-classic", "pipe-848", "pipe-alone")
STATIC = ("pipe-static-classic", "pipe-static-848")


class Member:
    """A consumer of librdkafka, which polls only when it is called."""

    def __init__(self, address: str, group: str, **more: str) -> None:
        given = {name.replace("_", "."): value for name, value in more.items()}
        self.seen = 0
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **given,
            }
        )
        self._consumer.subscribe(["pipe"])

    def poll(self) -> None:
        message = self._consumer.poll(0.1)
        if message is not None and message.error() is None:
            self.seen += 1
            self._consumer.commit(message, asynchronous=False)

    @property
    def owns(self) -> int:
        return len(self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


def until(members: list[Member], owns: list[int], seen: int = 0) -> None:
    deadline = time.monotonic() + 120
    while [m.owns for m in members] != owns or sum(m.seen for m in members) < seen:
        assert time.monotonic() < deadline, [(m.owns, m.seen) for m in members]
        for member in members:
            # A member whose partitions move commits some that it no longer owns.
            with contextlib.suppress(confluent_kafka.KafkaException):
                member.poll()


def live(address: str, group: str, **more: str) -> None:
    """Run one member, two, and one again, which leaves. Everything is read except the last
    records."""
    first = Member(address, group, **more)
    until([first], [4], seen=4)
    second = Member(address, group, **more)
    until([first, second], [2, 2])
    second.close()
    until([first], [4])
    first.close()


def restart(address: str, group: str, **more: str) -> None:
    """A static member that owns all partitions, and restarts."""
    for _ in range(2):
        member = Member(address, group, group_instance_id="instance", **more)
        until([member], [4])
        member.close()


@pytest.fixture(scope="module")
def out(spark: Any, module_broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tables after two runs: in each, groups have new records."""
    broker, folder = module_broker, tmp_path_factory.mktemp("pipeline")
    broker.create("pipe", 4)
    for partition in range(4):
        broker.fill("pipe", partition, numbered(partition, 5))
    set_heartbeat_interval(broker.address, "pipe-848", HEARTBEAT_MS)
    broker.commit("pipe-alone", {TopicPartition("pipe", 0): 2})
    live(broker.address, "pipe-classic", heartbeat_interval_ms=str(HEARTBEAT_MS))
    restart(broker.address, "pipe-static-848", group_protocol="consumer")
    pipeline.run(spark, {"bootstrap.servers": broker.address}, str(folder))
    live(broker.address, "pipe-848", group_protocol="consumer")
    restart(broker.address, "pipe-static-classic")
    restart(broker.address, "pipe-static-848", group_protocol="consumer")
    pipeline.run(spark, {"bootstrap.servers": broker.address}, str(folder))
    return folder


def rows(spark: Any, out: Path, table: str, where: str = "true") -> list[Any]:
    frame = spark.read.parquet(str(out / table))
    if "group_id" in frame.columns:
        frame = frame.where("group_id LIKE 'pipe-%'")
    return frame.where(where).collect()  # type: ignore[no-any-return]


def test_every_table_is_written_without_the_jobs_own_group(spark: Any, out: Path) -> None:
    folders = {folder.name for folder in out.iterdir() if not folder.name.startswith(".")}
    tables = folders - {"positions", "runs", "events"}
    assert len(tables) >= 14
    for table in tables:
        frame = spark.read.parquet(str(out / table))
        if "group_id" in frame.columns:
            assert frame.where(f"group_id = '{pipeline.GROUP}'").count() == 0, table
    assert rows(spark, out, "undecoded") == []
    assert len(rows(spark, out, "commits")) > 8


def test_rebalances_and_their_causes(spark: Any, out: Path) -> None:
    for group in GROUPS[:2]:
        found = rows(spark, out, "rebalances", f"group_id = '{group}'")
        causes = [(r.cause, r.members) for r in sorted(found, key=lambda r: r.generation)]
        joined = causes.index(("1 joined", 2))
        assert ("1 left", 1) in causes[joined:], causes
        assert all(r.seconds is None or 0 <= r.seconds < 120 for r in found)
        assert sum(r.moved for r in found) >= 2


def test_ownership_of_partitions_over_time(spark: Any, out: Path) -> None:
    for group in GROUPS[:2]:
        found = rows(spark, out, "ownership", f"group_id = '{group}'")
        assert {r.topic for r in found} == {"pipe"}
        for partition in range(4):
            row = sorted((r for r in found if r.partition == partition), key=lambda r: r.started)
            assert all(r.ended is not None for r in row)
            for one, other in pairwise(row):
                assert one.ended <= other.started, "two owners at a time"
        assert len({r.member_id for r in found}) == 2


def test_a_static_member_that_restarts_is_the_same_owner(spark: Any, out: Path) -> None:
    for group, processes in zip(STATIC, (2, 4), strict=True):
        moved = [r.moved for r in rows(spark, out, "rebalances", f"group_id = '{group}'")]
        assert moved
        assert not any(moved)
        found = rows(spark, out, "ownership", f"group_id = '{group}'")
        assert {r.instance_id for r in found} == {"instance"}
        assert len({r.member_id for r in found}) == processes


def test_lag_is_known_at_the_time_of_each_commit(spark: Any, out: Path) -> None:
    """Records are from 1970, so all of them existed at each commit."""
    found = rows(spark, out, "lag_history", "group_id = 'pipe-alone'")
    assert {(r.topic, r.partition, r.committed, r.log_end, r.lag) for r in found} == {
        ("pipe", 0, 2, 5, 3)
    }
    # The commit of its own, and the two runs.
    assert len({r.time for r in found}) >= 3


def test_evaluation_and_health(spark: Any, out: Path) -> None:
    (alone,) = rows(spark, out, "evaluation", "group_id = 'pipe-alone'")
    assert (alone.lag, alone.status, alone.stuck) == (3, "STOP", True)
    health = {row.group_id: row for row in rows(spark, out, "group_health")}
    assert set(health) == {*GROUPS, *STATIC}
    assert {row.gone_at for row in health.values()} == {None}
    assert (health["pipe-alone"].status, health["pipe-alone"].stuck_partitions) == ("STOP", 1)
    assert (health["pipe-alone"].rebalances, health["pipe-alone"].kind) == (0, None)
    for group, kind in zip(GROUPS, ("classic", "consumer"), strict=False):
        of = health[group]
        assert (of.kind, of.members) == (kind, 0)
        assert of.rebalances >= 2
        assert of.rebalances_per_hour > 0
        assert 0 <= of.unstable_share < 1


@pytest.mark.parametrize(
    "stored", ["folder", "catalog", "delta", "delta-catalog", "iceberg"], indirect=True
)
def test_parts_of_tables_are_added_and_replaced(
    spark: Any, tmp_path: Path, stored: Mapping[str, str]
) -> None:
    tables = Tables(spark, str(tmp_path / "out"), **stored)

    def content() -> list[tuple[int, int]]:
        return sorted((row.run, row.id) for row in tables.read("numbers").collect())

    assert not tables.exists("numbers")
    for part, count in ((-1, 1), (1, 3), (2, 1), (1, 2), (3, 0)):
        tables.replace_part("numbers", spark.range(count), "run", part)
        assert tables.exists("numbers")
    assert content() == [(-1, 0), (1, 0), (1, 1), (2, 0)]
    tables.delete_parts("numbers", "run", keep=2)
    assert (content(), tables.parts("numbers", "run")) == ([(2, 0)], [2])
    for _ in range(2):
        rows = spark.range(3).selectExpr("id", "IF(id = 0, -1, 7) AS run")
        tables.replace("numbers", rows, part_by="run")
    assert content() == [(-1, 0), (7, 1), (7, 2)]
    if tables.is_safe:
        kept = tables.read("numbers").where("id < 2")
        tables.replace("numbers", kept, part_by="run")
        assert content() == [(-1, 0), (7, 1)]
    tables.replace("numbers", rows.limit(0), part_by="run")
    assert content() == []
    tables.replace("numbers", spark.range(1).selectExpr("id", "'x' AS name"))
    assert tables.read("numbers").collect() == [(0, "x")]
    assert (tmp_path / "out").exists() is ("namespace" not in stored)


def test_the_report_shows_the_groups(spark: Any, out: Path, tmp_path: Path) -> None:
    report = pytest.importorskip("kafkagroup.spark.report", reason="NOT TESTED: no matplotlib")
    # It shows the worst of the groups, and others have many on this broker.
    shutil.copytree(out, tmp_path / "ours")
    tables = Tables(spark, str(tmp_path / "ours"))
    health = spark.read.parquet(str(out / "group_health"))
    tables.replace("group_health", health.where("group_id LIKE 'pipe-%'"))
    path = report.write_report(tables)
    assert path == f"{tmp_path}/ours/report.html"
    html = Path(path).read_text("utf-8")
    for group in GROUPS:
        assert f"<h3>{group} " in html  # their members have left
    assert "pipe/3" in html


def test_the_page_of_tables_has_all_columns_and_types(spark: Any, out: Path) -> None:
    page = (ROOT / "docs" / "spark-tables.md").read_text("utf-8")
    documented = {
        name: re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", rows, re.MULTILINE)
        for name, rows in re.findall(r"^### (\w+)\n(.*?)(?=^#|\Z)", page, re.DOTALL | re.MULTILINE)
    }
    written = {
        folder.name: [
            (field.name, field.dataType.simpleString())
            for field in spark.read.parquet(str(folder)).schema
        ]
        for folder in out.glob("[!.]*")  # not what was replaced
        if any(folder.rglob("*.parquet"))
    }
    assert documented == written


def test_measured_loads_are_read_by_members(spark: Any, out: Path, tmp_path: Path) -> None:
    file = tmp_path / "loads.json"
    assert write_loads(spark.read.parquet(str(out / "weights")), "pipe-alone", file) == 1
    measured = decode_loads(file.read_bytes())
    assert measured.loads == {TopicPartition("pipe", 0): pytest.approx(3 / 300)}
    assert abs(time.time() - measured.made_at) < 600
    assert [path.name for path in tmp_path.iterdir()] == ["loads.json"]


def test_a_weight_is_the_rate_plus_the_backlog(spark: Any) -> None:
    ends = spark.sql(
        """SELECT 't' AS topic, p AS partition, timestamp_seconds(s) AS time, e AS log_end FROM
        VALUES (0, 0, 900), (0, 500, 100), (0, 600, 400), (1, 600, 7) AS of(p, s, e)"""
    )
    evaluation = spark.sql(
        """SELECT 'g' AS group_id, 't' AS topic, p AS partition, l AS lag,
        timestamp_seconds(600) AS evaluated_at FROM VALUES (0, 60), (1, null), (2, 6) AS of(p, l)"""
    )
    found = weights(evaluation, ends, horizon=60.0, window=100.0).orderBy("partition").collect()
    assert [(r.partition, r.rate, r.load) for r in found] == [(0, 3.0, 4.0), (1, 0, 0), (2, 0, 0.1)]


def test_a_run_adds_only_new_rows(spark: Any, out: Path) -> None:
    for table in ("commits", "assignments", "rebalances", "ownership", "lag"):
        found = spark.read.parquet(str(out / table))
        groups = {
            run: {
                row.group_id
                for row in found.where(f"run = {run} AND group_id LIKE 'pipe-%'")
                .select("group_id")
                .distinct()
                .collect()
            }
            for run in (0, 1)
        }
        assert "pipe-848" not in groups[0], table
        assert "pipe-848" in groups[1], table
        assert ("pipe-classic" in groups[1]) == (table == "lag"), table
    events = spark.read.parquet(str(out / "events"))
    places = events.select("log_partition", "log_offset")
    assert places.distinct().count() == places.count()
    assert Tables(spark, str(out)).parts("timelines", "run") == [1]


@pytest.mark.long
def test_events_read_twice_are_counted_once(
    spark: Any, module_broker: Any, out: Path, tmp_path: Path
) -> None:
    """A job whose positions were deleted reads all events again."""
    shutil.copytree(out, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "positions")
    pipeline.run(spark, {"bootstrap.servers": module_broker.address}, str(tmp_path / "again"))
    places = spark.read.parquet(str(tmp_path / "again" / "events")).select(
        "log_partition", "log_offset"
    )
    assert places.distinct().count() == places.count()
    for table in DERIVED:
        assert content(spark, tmp_path / "again", table) == content(spark, out, table), table


DERIVED = ("commits", "rebalances", "ownership", "generations", "assignments")


def content(spark: Any, out: Path, table: str) -> list[str]:
    """Return the rows of a table, sorted; only of groups whose members have left. A static member
    stays until its session times out."""
    found = rows(spark, out, table, f"group_id IN {GROUPS}")
    columns = [c for c in found[0].__fields__ if c not in ("members", "run")]
    return sorted(str([row[c] for c in columns]) for row in found)


@pytest.mark.long
def test_a_run_that_died_is_repaired_by_the_next(
    spark: Any, module_broker: Any, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, again = {"bootstrap.servers": module_broker.address}, tmp_path / "again"

    class Died(BaseException):
        pass

    def die_at(last: str) -> Any:
        def on_step(step: str) -> None:
            if step == last:
                raise Died

        return on_step

    def run_and_die() -> None:
        for step in ("log_ends", "lag", "rebalances", "ownership", "group_health", "cleanup"):
            with pytest.raises(Died):
                pipeline.run(spark, address, str(again), on_step=die_at(step))

    class Earlier(Logs):
        """The topic when it had half of its records."""

        def log_bounds(self, partitions: Any) -> Any:
            starts, ends = super().log_bounds(partitions)
            return starts, {tp: (starts[tp] + end) // 2 for tp, end in ends.items()}

    with monkeypatch.context() as earlier:
        earlier.setattr(pipeline, "Logs", Earlier)
        run_and_die()
    run_and_die()
    (again / "rebalances" / "run=-1" / "rest-of-a-file").write_text("no Parquet")
    (again / ".rebalances.draft").mkdir(exist_ok=True)
    pipeline.run(spark, address, str(again))
    for table in DERIVED:
        assert content(spark, again, table) == content(spark, out, table), table
    assert [f.name for f in again.iterdir() if f.name.endswith(".draft")] == []


@pytest.mark.long
def test_many_parts_are_merged(
    spark: Any, module_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_MAX_PARTS", 2)
    tables = [
        pipeline.run(spark, {"bootstrap.servers": module_broker.address}, str(tmp_path))
        for _ in range(4)
    ][-1]
    assert tables.parts("lag", "run") == [2, 3]
    assert tables.parts("rebalances", "run") == [-1, 3]
    lag = tables.read("lag").where("group_id = 'pipe-alone'")
    assert lag.select("sampled_at").distinct().count() == lag.count() == 4


def test_tables_of_an_earlier_version_are_refused(
    spark: Any, module_broker: Any, tmp_path: Path
) -> None:
    spark.range(1).write.parquet(str(tmp_path / "events"))
    with pytest.raises(ConfigurationError, match="tables of an earlier version"):
        pipeline.run(spark, {"bootstrap.servers": module_broker.address}, str(tmp_path))
