"""Commands about groups: invalid arguments, incomplete data, and output on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import anyio
import click
import pytest
from cli.programs import TIMEOUT, running
from click.testing import CliRunner, Result

from kafkagroup import Admin, Consumer, TopicPartition
from kafkagroup.cli._app import app
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire.messages.group import DescribeGroupsRequest, ListGroupsRequest
from kafkagroup.wire.messages.offsets import OffsetFetchRequest


def run(*arguments: str, **variables: str) -> Result:
    env = {"COLUMNS": "120", "NO_COLOR": "1", **variables}
    return CliRunner(env=env).invoke(app, arguments)


def assert_failed(result: Result, exit_code: int, line: str) -> None:
    """Check for exactly one line on stderr, with this start."""
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr.startswith(f"kafkagroup: {line}")
    assert result.stderr.count("\n") == 1


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Provide a broker with a group that has committed 2 of 5 records of each of two partitions."""
    with EmbeddedKafka({"orders": 2}) as broker:
        for partition in range(2):
            broker.produce("orders", [b"x"] * 5, partition=partition)
        commit(broker, 2)
        yield broker


def commit(kafka: EmbeddedKafka, offset: int) -> None:
    async def alter() -> None:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await admin.alter_offsets("idle", {TopicPartition("orders", p): offset for p in (0, 1)})

    anyio.run(alter)


# ---------------------------------------------------------------- asked wrongly


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("describe",), "describe: give a group, or group.id in the profile"),
        (("lag",), "lag: give a group, or group.id in the profile"),
        (("lag", "g", "--watch", "0"), "lag: Invalid value for '--watch': 0.0 is not in the rang"),
        (("watch",), "watch: Missing argument 'GROUP'."),
        (("groups", "--state", "Sleepy"), "groups: Invalid value for '--state': 'Sleepy' is not o"),
        (("groups", "--type", "x"), "groups: Invalid value for '--type': 'x' is not one of "),
        (("reset-offsets", "g"), "reset-offsets: give one of --to-earliest, --to-latest, "),
        (("reset-offsets", "g", "--to-latest", "--to-offset", "3"), "reset-offsets: give one of "),
        (
            ("reset-offsets", "g", "--to-latest", "--dry-run", "--yes"),
            "reset-offsets: --dry-run and --yes exclude each other",
        ),
        (
            ("reset-offsets", "g", "--to-latest", "--partition", "1"),
            "reset-offsets: --partition needs one --topic",
        ),
        (
            ("reset-offsets", "g", "--to-datetime", "noon"),
            "reset-offsets: Invalid value for '--to-datetime': 'noon' is not a time such as 20",
        ),
        (
            ("reset-offsets", "g", "--to-datetime", "2026-01-31T12:00:00"),
            "reset-offsets: Invalid value for '--to-datetime': '2026-01-31T12:00:00' has no time z",
        ),
        (
            ("reset-offsets", "g", "--by-duration", "P"),
            "reset-offsets: Invalid value for '--by-duration': 'P' is not a duration such as 90s",
        ),
        (
            ("reset-offsets", "g", "--by-duration", "99999999999d"),
            "reset-offsets: Invalid value for '--by-duration': '99999999999d' is not a durati",
        ),
        (("delete-offsets", "g"), "delete-offsets: give --topic; delete-groups deletes all "),
        (("delete-groups",), "delete-groups: give the groups to delete"),
        *(
            (("remove-member", "g", *given), "remove-member: give either --instance ID or --member")
            for given in ((), ("--instance", "a", "--member", "b"), ("--member", ""))
        ),
    ],
)
def test_bad_input_is_one_line_that_helps(arguments: tuple[str, ...], line: str) -> None:
    assert_failed(run(*arguments, BOOTSTRAP="x"), 2, line)


@pytest.mark.parametrize(
    "arguments",
    [
        ("groups",),
        ("topics", "list"),
        ("topics", "create", "t"),
        ("describe", "g"),
        ("lag", "g"),
        ("lag", "g", "--watch"),
        ("watch", "g"),
        ("export-offsets", "g"),
        ("reset-offsets", "g", "--to-latest"),
        ("delete-groups", "g", "--yes"),
        ("delete-offsets", "g", "--topic", "t"),
        ("remove-member", "g", "--instance", "a", "--yes"),
    ],
)
def test_an_unreachable_server_is_one_line_of_error(arguments: tuple[str, ...]) -> None:
    assert_failed(run(*arguments, "--bootstrap-servers", "127.0.0.1:1"), 1, "no broker answere")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"{", "offsets: Expecting "),
        (b"\xff", "reset-offsets: {} is not UTF-8"),
        (
            b'{"version": 1, "group_id": "g", "offsets": [{"topic": 1}]}',
            "offsets[0]: topic is 1, no str",
        ),
    ],
)
def test_a_file_without_offsets_is_refused(tmp_path: Path, text: bytes, line: str) -> None:
    file = tmp_path / "offsets.json"
    file.write_bytes(text)
    result = run("reset-offsets", "g", "--from-file", str(file))
    assert_failed(result, 2, line.format(file))


def test_no_offsets_of_an_absent_group_are_exported(kafka: EmbeddedKafka) -> None:
    """The file looked like a backup of the misspelt group."""
    done = run("export-offsets", "typo", "-b", kafka.bootstrap_servers)
    message = "kafkagroup: GROUP_ID_NOT_FOUND (69): Group typo not found.\n"
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", message)


def test_no_offsets_of_an_absent_topic_are_exported(kafka: EmbeddedKafka) -> None:
    """The file looked like a backup of the misspelt topic."""
    done = run("export-offsets", "idle", "--topic", "typo", "-b", kafka.bootstrap_servers)
    message = "kafkagroup: group 'idle' has no committed offsets of what is selected\n"
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", message)


def test_short_help_is_the_help_but_not_of_a_command_to_run() -> None:
    for path in ((), ("lag",), ("topics", "create")):
        short, long = (CliRunner().invoke(app, [*path, name]) for name in ("-h", "--help"))
        assert (short.exit_code, short.output) == (0, long.output)
    ran = CliRunner().invoke(app, ["elect", "g", "df", "-h", "-b", ""])
    assert (ran.exit_code, "Usage" in ran.output) == (2, False)


def test_exported_offsets_are_refused_in_another_cluster(tmp_path: Path) -> None:
    """They were committed there, at records of which they say nothing. Files of earlier releases
    name no cluster, and are taken."""
    file = tmp_path / "offsets.json"
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.produce("t", ["a", "b"])
        to = ("--bootstrap-servers", kafka.bootstrap_servers)
        reset = ("reset-offsets", "g", "--to-latest", "--topic", "t", "--yes")
        assert run(*reset, *to).exit_code == 0
        assert run("export-offsets", "g", "--out", str(file), *to).exit_code == 0
    exported = json.loads(file.read_text())
    assert exported["cluster_id"] == "kafkagroup-embedded-01"
    with EmbeddedKafka({"t": 1}, cluster_id="another") as other:
        other.produce("t", ["x", "y", "z"])
        take = ("reset-offsets", "g", "--from-file", str(file), "--yes")
        to = ("--bootstrap-servers", other.bootstrap_servers)
        assert_failed(
            run(*take, *to), 1, "the exported offsets belong to cluster 'kafkagroup-embedded-01'"
        )
        assert other.committed("g", "t") == {}
        del exported["cluster_id"]
        file.write_text(json.dumps(exported))
        assert run(*take, *to).exit_code == 0
        assert other.committed("g", "t") == {0: 2}


# ---------------------------------------------------------------- incomplete data


def test_the_group_defaults_to_that_of_the_profile(
    kafka: EmbeddedKafka, nothing_configured: Path
) -> None:
    nothing_configured.write_text(
        f"[profiles.shop]\nbootstrap.servers = '{kafka.bootstrap_servers}'\ngroup.id = 'idle'\n"
    )
    result = run("lag", "--profile", "shop", "--json")
    assert json.loads(result.stdout)["groups"][0]["group_id"] == "idle"


def test_missing_authentication_is_reported(nothing_configured: Path) -> None:
    with EmbeddedKafka(users={"operator": "hunter2"}) as kafka:
        nothing_configured.write_text(
            f"[default]\nbootstrap.servers = '{kafka.bootstrap_servers}'\n"
            "security.protocol = 'SASL_PLAINTEXT'\nsasl.mechanism = 'SCRAM-SHA-256'\n"
            "sasl.username = 'operator'\n"
        )
        known = run("groups", "--json", KAFKAGROUP_SASL_PASSWORD="hunter2")
        stranger = run("groups", KAFKAGROUP_SASL_PASSWORD="hunter3")
    assert (known.exit_code, json.loads(known.stdout)["groups"]) == (0, [])
    assert_failed(stranger, 1, "")
    assert "hunter" not in stranger.stderr


def test_brokers_that_do_not_list_their_groups_are_named(kafka: EmbeddedKafka) -> None:
    kafka.fail(ListGroupsRequest, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, times=None)
    result = run("groups", "--bootstrap-servers", kafka.bootstrap_servers)
    assert result.exit_code == 1
    assert result.stdout.startswith("0 groups")
    words = f"kafkagroup: broker {kafka.bootstrap_servers} (id 1): CLUSTER_AUTHORIZATION_FAILED"
    assert result.stderr.startswith(words)
    result = run("groups", "--json", "--bootstrap-servers", kafka.bootstrap_servers)
    assert json.loads(result.stdout)["errors"][0]["broker"]["node_id"] == 1


@pytest.mark.parametrize(
    "arguments", [("lag", "TYPO"), ("lag", "idle", "TYPO"), ("describe", "TYPO")]
)
def test_a_missing_group_is_an_error(kafka: EmbeddedKafka, arguments: tuple[str, ...]) -> None:
    """A misspelled name looked like a group without lag."""
    result = run(*arguments, "--bootstrap-servers", kafka.bootstrap_servers)
    assert result.exit_code == 1
    assert "TYPO" not in result.stdout
    assert ("idle" in result.stdout) == ("idle" in arguments)
    assert result.stderr.startswith("kafkagroup: group 'TYPO': GROUP_ID_NOT_FOUND")
    assert result.stderr.count("\n") == 1


def test_a_group_with_members_that_has_committed_nothing_has_a_lag(kafka: EmbeddedKafka) -> None:
    async def look() -> Result:
        async with Consumer(
            "orders", bootstrap_servers=kafka.bootstrap_servers, group_id="new"
        ) as consumer:
            await consumer.wait_assignment()
            return await anyio.to_thread.run_sync(
                lambda: run("lag", "new", "--json", "--bootstrap-servers", kafka.bootstrap_servers)
            )

    result = anyio.run(look)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["groups"][0]["group_id"] == "new"


def test_version_is_printed() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"kafkagroup {version('kafkagroup')}\n")


def test_a_group_without_offsets_is_described(kafka: EmbeddedKafka) -> None:
    kafka.fail(OffsetFetchRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
    arguments = ("describe", "idle", "--bootstrap-servers", kafka.bootstrap_servers)
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stdout.startswith("Group idle\n")
    assert "committed" not in result.stdout
    assert result.stderr.startswith("kafkagroup: group 'idle': GROUP_AUTHORIZATION_FAILED")
    (group,) = json.loads(run(*arguments, "--json").stdout)["groups"]
    assert (group["state"], group["lag"], group["offsets"]) == ("Empty", None, None)


def test_names_cannot_control_the_terminal(kafka: EmbeddedKafka) -> None:
    result = run("describe", "\x1b[2J[red]", "--bootstrap-servers", kafka.bootstrap_servers)
    assert result.exit_code == 1
    assert "\x1b" not in result.output


# ---------------------------------------------------------------- a terminal


class Terminal:
    """A command on a pseudo-terminal, with its input and output."""

    def __init__(self, *arguments: str) -> None:
        self._end, theirs = pty.openpty()
        termios.tcsetwinsize(self._end, (24, 100))
        env = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"}
        env.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kafkagroup", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def see(self, words: str) -> str:
        """Read until this text appears; return it with everything before it."""
        deadline = time.monotonic() + 30
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            self._read()
        seen, _, self.text = self.text.partition(words)
        return seen + words

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def rest(self) -> str:
        deadline = time.monotonic() + 30
        while self._read():
            assert time.monotonic() < deadline, "the command does not end"
        return self.text

    def _read(self) -> bool:
        assert select.select([self._end], [], [], 30)[0], self.text
        try:
            data = os.read(self._end, 65_536).decode()
        except OSError:  # the command has ended
            return False
        self.text += re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", data).replace("\r", "")
        return bool(data)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    one = Terminal(*arguments)
    try:
        yield one
    finally:
        one.close()


def test_watching_lag_updates_until_ctrl_c(kafka: EmbeddedKafka) -> None:
    arguments = ("idle", "--watch", "0.1", "--bootstrap-servers", kafka.bootstrap_servers)
    with terminal("lag", *arguments) as one:
        one.see("last samples")
        one.see("Ctrl-C ends it")
        commit(kafka, 4)
        assert re.search(r"orders/0 +4 +5 +1 +[0-9.]+ +█+▃", one.see("█▃"))
        os.kill(one.process.pid, signal.SIGINT)
        rest = one.rest()
        assert (one.process.wait(), "Traceback" in rest) == (0, False)


def test_a_small_terminal_shows_the_largest_lags_and_sums_the_rest() -> None:
    with EmbeddedKafka({"orders": 50}) as kafka:
        for partition in range(50):
            kafka.produce("orders", [b"x"] * partition, partition=partition)

        async def alter() -> None:
            async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
                to = {TopicPartition("orders", p): 0 for p in range(50)}
                await admin.alter_offsets("idle", to)

        anyio.run(alter)
        with terminal(
            "lag", "idle", "--watch", "--bootstrap-servers", kafka.bootstrap_servers
        ) as one:
            shown = one.see("Ctrl-C ends it")
    rows = [line.split() for line in shown.splitlines()]
    assert len(rows) == 24
    assert [row[0] for row in rows if row[:1] and row[0].startswith("orders/")] == [
        f"orders/{p}" for p in range(49, 34, -1)
    ]
    assert ["35", "others"] in rows


def test_a_reset_asks_for_confirmation(kafka: EmbeddedKafka) -> None:
    arguments = ("idle", "--to-earliest", "--bootstrap-servers", kafka.bootstrap_servers)
    for response, message, code in (("n\n", "Nothing is changed.", 1), ("y\n", "Committed.", 0)):
        with terminal("reset-offsets", *arguments) as one:
            shown = one.see("Commit this for group 'idle'? [y/N]:")
            assert re.search(r"orders/1 +2 +0 +-2 ", shown)
            one.type(response)
            one.see(message)
            assert one.process.wait() == code


@pytest.mark.parametrize("how", [KeyboardInterrupt, click.Abort])
def test_ctrl_c_at_the_confirmation_aborts_quietly(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, how: type[BaseException]
) -> None:
    def confirm_or_exit(*_: object) -> None:
        raise how

    monkeypatch.setattr("kafkagroup.cli.delete_groups.confirm_or_exit", confirm_or_exit)
    result = run("delete-groups", "idle", "--bootstrap-servers", kafka.bootstrap_servers)
    assert (result.exit_code, result.output) == (130, "")


def test_all_groups_are_read(kafka: EmbeddedKafka) -> None:
    async def alter() -> None:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await admin.alter_offsets("other", {TopicPartition("orders", 0): 5})

    anyio.run(alter)
    servers = ("-b", kafka.bootstrap_servers)
    for name in ("lag", "describe"):
        found = run(name, "--all-groups", "--json", *servers)
        assert (found.exit_code, found.stderr) == (0, "")
        groups = json.loads(found.stdout)["groups"]
        assert {group["group_id"]: group["lag"] for group in groups} == {"idle": 6, "other": 0}
        one = json.loads(run(name, "-g", "idle", "--json", *servers).stdout)
        assert [group["group_id"] for group in one["groups"]] == ["idle"]
        assert_failed(run(name, "idle", "-a", *servers), 2, f"{name}: give either groups or --all")


def test_groups_are_listed_by_pattern(kafka: EmbeddedKafka) -> None:
    for pattern, found in (("i*", ["idle"]), ("dl", ["idle"]), ("dl*", []), ("[ij]dle", ["idle"])):
        listed = run("groups", pattern, "--json", "-b", kafka.bootstrap_servers)
        assert [one["group_id"] for one in json.loads(listed.stdout)["groups"]] == found


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("lga",), "No such command 'lga'. Did you mean lag?"),
        (("list-groups",), "No such command 'list-groups'. Did you mean groups?"),
        (("delete",), "No such command 'delete'. Did you mean delete-groups or delete-offsets?"),
        (("list",), "No such command 'list'. Did you mean groups or topics list?"),
        (("topics", "lst"), "topics: No such command 'lst'. Did you mean list?"),
        (("zzz",), "No such command 'zzz'. See kafkagroup --help."),
        (
            ("reset-offsets", "g", "--to"),
            (
                "reset-offsets: No such option '--to'. Did you mean '--to-earliest' or"
                " '--to-latest' or '--to-datetime' or '--to-offset'?"
            ),
        ),
        (
            ("plan", "g"),
            "plan: Got unexpected extra argument (g). See kafkagroup plan --help.",
        ),
        (
            ("delete-offsets", "g", "t"),
            (
                "delete-offsets: Got unexpected extra argument (t). See kafkagroup delete-offsets"
                " --help."
            ),
        ),
        (("-z",), "No such option '-z'. See kafkagroup --help."),
        (("lag", "--wach"), "lag: No such option '--wach'. Did you mean '--watch'?"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(arguments: tuple[str, ...], line: str) -> None:
    result = CliRunner().invoke(app, arguments, prog_name="kafkagroup")
    assert (result.exit_code, result.stderr) == (2, f"kafkagroup: {line}\n")


@pytest.mark.parametrize(
    "arguments",
    [("lag", "idle", "--watch", "0.1", "--json"), ("lag", "idle", "--watch", "0.1"), ("groups",)],
)
def test_a_closed_pipe_ends_a_command_with_success(
    kafka: EmbeddedKafka, arguments: tuple[str, ...]
) -> None:
    with running(*arguments, "-b", kafka.bootstrap_servers) as process:
        if arguments != ("groups",):
            process.stdout.readline()
        process.stdout.close()
        assert (process.wait(TIMEOUT), process.stderr.read()) == (0, b"")


def test_members_in_the_way_are_reported_before_the_prompt(kafka: EmbeddedKafka) -> None:
    """The commands once asked, and failed after the response."""
    commit(kafka, 1)

    async def with_a_member() -> dict[str, Result]:
        options = {"group_id": "idle", "group_instance_id": "node-1"}
        async with Consumer("orders", bootstrap_servers=kafka.bootstrap_servers, **options) as c:
            await c.wait_assignment()
            return {
                name: await anyio.to_thread.run_sync(
                    run, name, *rest, "--bootstrap-servers", kafka.bootstrap_servers
                )
                for name, rest in {
                    "reset-offsets": ("idle", "--to-latest"),
                    "delete-offsets": ("idle", "--topic", "orders", "--partition", "0"),
                    "delete-groups": ("idle", "none"),
                    "remove-member": ("idle", "--instance", "node-2"),
                }.items()
            }

    results = anyio.run(with_a_member)
    who = "1 member, node-1 (/127.0.0.1); stop its members first, and wait until they have left or"
    assert {name: one.stderr.replace("kafkagroup: ", "") for name, one in results.items()} == {
        "reset-offsets": f"NON_EMPTY_GROUP (68): group 'idle' has {who} timed out\n",
        "delete-offsets": (f"orders/0 is kept: group 'idle' subscribes with {who} timed out\n"),
        "delete-groups": (
            f"group 'idle' is kept: it has {who} timed out\n"
            "group 'none' is kept: GROUP_ID_NOT_FOUND (69): Group none not found.\n"
        ),
        "remove-member": (
            "UNKNOWN_MEMBER_ID (25): group 'idle' has no member of --instance node-2;"
            " its members: node-1\n"
        ),
    }
    assert {one.exit_code for one in results.values()} == {1}


def test_a_dry_run_reports_members_in_the_way(kafka: EmbeddedKafka) -> None:
    async def with_a_member() -> Result:
        options = {"group_id": "idle", "bootstrap_servers": kafka.bootstrap_servers}
        async with Consumer("orders", **options) as c:
            await c.wait_assignment()
            arguments = ("idle", "--to-earliest", "--dry-run", "--json", "--bootstrap-servers")
            return await anyio.to_thread.run_sync(
                run, "reset-offsets", *arguments, kafka.bootstrap_servers
            )

    result = anyio.run(with_a_member)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["applied"] is False
    assert result.stderr.startswith("kafkagroup: group 'idle' has 1 member, kafkagroup-")


# ---------------------------------------------------------------- completion


def test_group_names_are_completed_in_the_shell(kafka: EmbeddedKafka) -> None:
    def completed(words: str, at: str) -> list[str]:
        shell = {"_KAFKAGROUP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": at}
        result = CliRunner(env=shell).invoke(app, prog_name="kafkagroup")
        return result.stdout.split()

    cluster = f"--bootstrap-servers {kafka.bootstrap_servers}"
    assert completed(f"kafkagroup describe {cluster} i", "4") == ["plain,idle"]
    assert completed(f"kafkagroup describe {cluster} x", "4") == []
    assert completed("kafkagroup describe --bootstrap-servers 127.0.0.1:1 i", "4") == []
    assert completed("kafkagroup des", "1") == ["plain,describe"]


def test_watching_a_group_without_permission_is_an_error(kafka: EmbeddedKafka) -> None:
    kafka.fail(DescribeGroupsRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
    result = run("watch", "idle", "--bootstrap-servers", kafka.bootstrap_servers)
    assert_failed(result, 1, "GROUP_AUTHORIZATION_FAILED")
