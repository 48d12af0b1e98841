"""The commands about groups: their output and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from brokers import FAST, Worker, until
from click.testing import CliRunner, Result

from kafkagroup import Admin, OffsetAndMetadata, TopicPartition
from kafkagroup.cli._app import app

ENV = {"COLUMNS": "160", "NO_COLOR": "1", "XDG_CONFIG_HOME": os.devnull}

Run = Callable[..., Result]


@pytest.fixture
def run(bootstrap: str) -> Run:
    """Run a command on the broker of this test."""

    def command(*arguments: str) -> Result:
        return CliRunner(env=ENV).invoke(app, [*arguments, "--bootstrap-servers", bootstrap])

    return command


def value(result: Result) -> Any:
    """Return the output of `--json`."""
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def lines(result: Result) -> list[str]:
    """Return the printed tables, cell by cell."""
    assert (result.exit_code, result.stderr) == (0, "")
    return [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]


@pytest.fixture
def commit(bootstrap: str) -> Callable[..., None]:
    """Commit for a group without members: `commit(group, {tp: offset})`."""

    async def alter(group: str, offsets: dict[TopicPartition, int]) -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await admin.alter_offsets(group, offsets)

    return lambda group, offsets: anyio.run(alter, group, offsets)


@pytest.fixture
def committed(bootstrap: str) -> Callable[[str], object]:
    """Return the committed offsets of a group."""

    async def ask(group: str) -> object:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            return (await admin.committed([group]))[group]

    return lambda group: anyio.run(ask, group)


def with_a_member(
    bootstrap: str, name: str, count: int, then: Callable[[], Any], **options: Any
) -> Any:
    """Return the result of `then` while a group of one member has `count` partitions."""

    async def story() -> Any:
        worker = Worker(bootstrap, name, **options)
        async with worker.consumer:
            await until(lambda: len(worker.owns) == count)
            return await anyio.to_thread.run_sync(then)

    return anyio.run(story)


# ---------------------------------------------------------------- looking


def test_groups(run: Run, bootstrap: str, name: str, fill, commit) -> None:
    anyio.run(fill, 2, 1)
    idle = f"{name}-idle"
    commit(idle, {TopicPartition(name, 0): 1})

    def look() -> tuple[Result, ...]:
        return (
            run("groups", "--json"),
            run("groups", "--state", "stable", "--type", "classic", "--json"),
            run("groups"),
        )

    everything, stable, shown = with_a_member(bootstrap, name, 2, look)
    found = {group["group_id"]: group for group in value(everything)["groups"]}
    host = bootstrap.partition(":")[0]
    assert found[name].pop("coordinator").keys() == {"node_id", "host", "port"}
    assert found[name] == {
        "group_id": name,
        "type": "classic",
        "state": "Stable",
        "protocol_type": "consumer",
    }
    assert (found[idle]["state"], value(everything)["errors"]) == ("Empty", [])
    names = {group["group_id"] for group in value(stable)["groups"]}
    assert name in names
    assert idle not in names
    assert any(line.startswith(f"{name} classic Stable consumer {host}:") for line in lines(shown))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_describe(run: Run, bootstrap: str, name: str, fill, protocol: str) -> None:
    anyio.run(fill, 2, 3)
    options = {"group_protocol": protocol, "group_instance_id": "node-1", "client_id": "me"}
    if protocol == "classic":
        options |= FAST
    found, shown = with_a_member(
        bootstrap,
        name,
        2,
        lambda: (run("describe", name, "--json"), run("describe", name)),
        **options,
    )
    (group,) = value(found)["groups"]
    (member,) = group["members"]
    assert (group["type"], group["state"], group["lag"], group["offsets"]) == (
        protocol,
        "Stable",
        0,
        [],
    )
    assert (group["group_epoch"] is None) == (protocol == "classic")
    assert (member["instance_id"], member["client_id"]) == ("node-1", "me")
    assert member["partitions"] == {name: [0, 1]}
    printed = lines(shown)
    assert printed[0] == f"Group {name}"
    assert "state Stable" in printed
    assert any(line.startswith("node-1 me /127.0.0.1 ") for line in printed)
    assert any(line.endswith(f" 2 {name} 0-1") for line in printed)
    assert printed[-1] == "Nothing is committed."


def test_missing_groups_are_reported_and_the_others_shown(
    run: Run, name: str, fill, commit
) -> None:
    anyio.run(fill, 1, 3)
    commit(name, {TopicPartition(name, 0): 1})
    result = run("describe", f"{name}-none", name, "--json")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"kafkagroup: group '{name}-none': GROUP_ID_NOT_FOUND ")
    assert result.stderr.count("\n") == 1
    found = json.loads(result.stdout)
    assert [(group["group_id"], group["lag"]) for group in found["groups"]] == [(name, 2)]
    assert found["errors"].keys() == {f"{name}-none"}


def test_lag(run: Run, name: str, fill, commit) -> None:
    anyio.run(fill, 3, 5)  # records of 1970
    commit(name, {TopicPartition(name, p): at for p, at in enumerate((2, 5, 9))})
    (group,) = value(run("lag", name, "--json"))["groups"]
    behind, done, lost = group["partitions"]
    assert (group["lag"], group["seconds"]) == (3, behind["seconds"])
    assert behind.pop("seconds") > 50 * 365 * 86_400
    assert behind == {
        "topic": name,
        "partition": 0,
        "committed": 2,
        "start": 0,
        "end": 5,
        "lag": 3,
        "reason": None,
    }
    assert (done["lag"], done["seconds"]) == (0, 0.0)
    assert lost["reason"] == "the log ends before the committed offset"
    printed = lines(run("lag", name))
    assert printed[0] == name
    assert f"{name}/1 5 5 0 0.000" in printed
    assert f"{name}/2 9 5 the log ends before the committed offset" in printed
    assert printed[-1].startswith("total 3 ")


# ---------------------------------------------------------------- live


@contextmanager
def program(bootstrap: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command line in a separate process, and end it with Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kafkagroup", *arguments, "--bootstrap-servers", bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENV},
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, ""), rest
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def test_watching_lag(bootstrap: str, name: str, fill, commit) -> None:
    anyio.run(fill, 2, 5)
    zero, one = (TopicPartition(name, p) for p in range(2))
    commit(name, {zero: 2, one: 5})
    with program(bootstrap, "lag", name, "--watch", "0.1", "--json") as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        assert (first["group_id"], first["lag"], first["partitions"][0]["lag"]) == (name, 3, 3)
        assert first["time"].endswith("+00:00")
        commit(name, {zero: 4})
        assert 1 in (json.loads(line)["lag"] for line in watching.stdout)
    with program(bootstrap, "lag", name, "--watch", "0.1") as watching:
        assert watching.stdout is not None
        words = f"{name}: lag 1 in 1 of 2 partitions, "
        assert watching.stdout.readline().partition("  ")[2].startswith(words)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_watching_a_group(bootstrap: str, name: str, fill, protocol: str) -> None:
    anyio.run(fill, 2)
    options = {"group_protocol": protocol} | (FAST if protocol == "classic" else {})
    with program(bootstrap, "watch", name, "--json", "--every", "0.1") as watching:
        assert watching.stdout is not None
        seen = map(json.loads, watching.stdout)
        first = next(seen)
        assert (first["group_id"], first["state"], first["cause"]) == (name, "absent", None)

        async def story() -> None:
            worker = Worker(bootstrap, name, client_id="me", **options)
            async with worker.consumer:
                await until(lambda: worker.owns == [0, 1])
                joined, held = await anyio.to_thread.run_sync(events, "joined", "gained")
                (member,) = joined["joined"]
                assert member["client_id"] == "me"
                assert joined["cause"].startswith("1 joined")
                assert held["gained"] == {member["member_id"]: {name: [0, 1]}}
            gone, _ = await anyio.to_thread.run_sync(events, "gone", "gone")
            assert [one["member_id"] for one in gone["gone"]] == [member["member_id"]]
            assert (gone["cause"], gone["state"]) == ("1 left or timed out", "Empty")

        def events(first: str, then: str) -> tuple[dict[str, Any], dict[str, Any]]:
            """The first change in which there is the one, and from there on the other."""
            change = next(change for change in seen if change[first])
            return change, change if change[then] else next(c for c in seen if c[then])

        anyio.run(story)


# ---------------------------------------------------------------- changing


def test_reset_offsets(run: Run, name: str, fill, commit, committed, tmp_path: Path) -> None:
    """Records have timestamps 1.000 s, 1.001 s and so on."""
    anyio.run(fill, 2, 5)
    zero, one = (TopicPartition(name, p) for p in range(2))
    start = {zero: 3, one: 4}
    for how, after in (
        (["--to-earliest"], (0, 0)),
        (["--to-latest"], (5, 5)),
        (["--to-offset", "99"], (5, 5)),
        (["--to-datetime", "1970-01-01T00:00:01.002Z"], (2, 2)),
        (["--by-duration", "1m"], (5, 5)),
        (["--shift-by", "-4"], (0, 0)),
        (["--shift-by", "-1", "--topic", name, "--partition", "1"], (3, 3)),
    ):
        commit(name, start)
        change = value(run("reset-offsets", name, *how, "--dry-run", "--json"))
        assert (change["group_id"], change["applied"]) == (name, False)
        wanted = {zero: after[0], one: after[1]}
        for row in change["changes"]:
            tp = TopicPartition(row["topic"], row["partition"])
            assert (row["before"], row["after"]) == (start[tp], wanted[tp])
        assert committed(name) == {tp: OffsetAndMetadata(at) for tp, at in start.items()}
        refused = run("reset-offsets", name, *how)
        assert refused.exit_code == 2
        assert "there is no terminal to ask on" in refused.stderr
        assert committed(name) == {tp: OffsetAndMetadata(at) for tp, at in start.items()}
        assert lines(run("reset-offsets", name, *how, "--execute"))[-1] == "Committed."
        assert committed(name) == {tp: OffsetAndMetadata(at) for tp, at in wanted.items()}


def test_offsets_are_exported_and_imported_into_another_group(
    run: Run, name: str, fill, commit, committed, tmp_path: Path
) -> None:
    anyio.run(fill, 2, 5)
    commit(name, {TopicPartition(name, 0): 3, TopicPartition(name, 1): 4})
    file = tmp_path / "offsets.json"
    assert run("export-offsets", name, "--out", str(file)).exit_code == 0
    assert file.read_text() == run("export-offsets", name).stdout
    copy = f"{name}-copy"
    arguments = ("--from-file", str(file), "--topic", name, "--partition", "1")
    shown = lines(run("reset-offsets", copy, *arguments, "--yes"))
    assert shown[-2:] == [f"{name}/1 - 4", "Committed."]
    assert committed(copy) == {TopicPartition(name, 1): OffsetAndMetadata(4)}
    again = lines(run("reset-offsets", copy, *arguments))
    assert again[-2:] == [f"{name}/1 4 4 +0", "Nothing is changed."]


def test_a_group_with_members_keeps_its_offsets(run: Run, bootstrap: str, name: str, fill) -> None:
    anyio.run(fill, 1, 5)
    result = with_a_member(
        bootstrap,
        name,
        1,
        lambda: run("reset-offsets", name, "--to-latest", "--topic", name, "--yes"),
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("kafkagroup: NON_EMPTY_GROUP (68): group ")
    assert result.stderr.count("\n") == 1


def test_offsets_and_groups_are_deleted(run: Run, name: str, fill, commit, committed) -> None:
    anyio.run(fill, 3, 5)
    commit(name, {TopicPartition(name, p): 1 for p in range(3)})
    refused = run("delete-offsets", name, "--topic", name)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    chosen = ("--topic", name, "--partition", "0", "--partition", "2")
    assert lines(run("delete-offsets", name, *chosen, "--yes")) == [f"{name}: deleted {name} 0 2"]
    assert committed(name) == {TopicPartition(name, 1): OffsetAndMetadata(1)}
    found = value(run("delete-offsets", name, "--topic", name, "--yes", "--json"))
    assert found == {"group_id": name, "deleted": {name: [1]}, "errors": {}}
    none = value(run("delete-offsets", name, "--topic", name, "--json"))
    assert none["deleted"] == {}

    commit(name, {TopicPartition(name, 0): 1})
    assert run("delete-groups", name).exit_code == 2
    result = run("delete-groups", name, f"{name}-none", "--yes")
    assert (result.exit_code, result.stdout) == (1, f"{name}: deleted\n")
    assert result.stderr.startswith(f"kafkagroup: group '{name}-none' is kept: GROUP_ID_NOT_FOUND")
    assert committed(name) == {}


def test_a_member_is_removed(run: Run, bootstrap: str, name: str, fill) -> None:
    anyio.run(fill, 1)

    def remove() -> tuple[Result, Result, Result]:
        who = ("remove-member", name, "--instance", "node-1")
        stranger = run("remove-member", name, "--member", "nobody", "--yes")
        return run(*who), stranger, run(*who, "--yes", "--reason", "gone for good")

    refused, stranger, done = with_a_member(bootstrap, name, 1, remove, group_instance_id="node-1")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert (stranger.exit_code, stranger.stderr.count("\n")) == (1, 1)
    assert "UNKNOWN_MEMBER_ID" in stranger.stderr
    assert lines(done) == [f"{name}: node-1 is removed"]
