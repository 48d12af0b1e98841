"""`kafkagroup plan`: tables, JSON, and one line about errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from brokers import Worker, until
from click.testing import CliRunner, Result

from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.cli import _app
from kafkagroup.cli._app import app
from kafkagroup.group import GroupMember, GroupProtocol
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire.embedded_protocol import Subscription, encode_subscription

SPEC = {
    "members": {
        "a": {"topics": ["orders"], "owned": {"orders": [0, 1, 2, 3, 4]}, "generation": 7},
        "b-0001": {
            "topics": ["audit", "orders"],
            "instance_id": "node-2",
            "owned": {"audit": [0], "orders": [0]},
            "generation": 6,
        },
    },
    "topics": {"orders": 6, "audit": 1},
}


OWN = """\
from kafkagroup.types import TopicPartition


def settled(spec):
    \"\"\"orders 3-4 to node-2, once a has let go of them.\"\"\"
    owned = {tp: m for m, of in spec.members.items() for tp in of.owned if of.generation > 6}
    held = {m: () for m in spec.members}
    for topic in spec.topics():
        for p in range(spec.partitions[topic]):
            tp = TopicPartition(topic, p)
            taker = "b-0001" if topic == "audit" or p in (3, 4) else "a"
            if owned.get(tp, taker) == taker:
                held[taker] += (tp,)
    return held

settled.cooperative = True

def strangers(spec):
    return {"z": ()}

def broken(spec):
    raise ValueError("one\\ntwo")

number = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a directory with custom assignors."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    return tmp_path


def run(*arguments: str, spec: object = None, width: int = 100) -> Result:
    """The command with a spec on stdin."""
    text = json.dumps(spec) if spec is not None else None
    given = ["--spec", "-"] if spec is not None else []
    return CliRunner(env={"COLUMNS": str(width), "NO_COLOR": "1"}).invoke(
        app, ["plan", *given, *arguments], input=text, prog_name="kafkagroup"
    )


def shown(result: Result) -> str:
    assert (result.exit_code, result.stderr) == (0, "")
    return "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())


# ---------------------------------------------------------------- printed plans


ONE = """\
Partitions of each member

 member   before   after
 ──────────────────────────
 node-2        1       4
 a             5       3

Claims that do not count

 partition   member   why
 ────────────────────────────────────────────────────────
 orders/0    node-2   a claimed it later, in generation 7

What range moves

 partitions   from   to       round   why
 ─────────────────────────────────────────────────────────────────────
 orders 0-1   a      node-2       1   range ignores who owned it
 orders 2     a      node-2       1   balance: a 5 -> 3, node-2 1 -> 4
 orders 5     -      a            1   no member owned it

Totals

 assignor   kept   moved   given   dropped   paused   rounds   each before   each after
 ──────────────────────────────────────────────────────────────────────────────────────
 range         3       3       1         0        6        1           1-5          3-4

"""


def test_a_plan_of_one_assignor_is_printed() -> None:
    assert shown(run("--assignor", "range", spec=SPEC)) == ONE


SEVERAL = """\
Partitions of each member

 member   before   range   settled
 ────────────────────────────────────
 node-2        1       4         3
 a             5       3         4

Claims that do not count

 partition   member   why
 ────────────────────────────────────────────────────────
 orders/0    node-2   a claimed it later, in generation 7

What range moves

 partitions   from   to       round   why
 ─────────────────────────────────────────────────────────────────────
 orders 0-1   a      node-2       1   range ignores who owned it
 orders 2     a      node-2       1   balance: a 5 -> 3, node-2 1 -> 4
 orders 5     -      a            1   no member owned it

What settled moves

 partitions   from   to       round   why
 ─────────────────────────────────────────────────────────────────────
 orders 3     a      node-2       2   settled ignores who owned it
 orders 4     a      node-2       2   balance: a 5 -> 4, node-2 1 -> 3
 orders 5     -      a            1   no member owned it

Totals

 assignor   kept   moved   given   dropped   paused   rounds   each before   each after
 ──────────────────────────────────────────────────────────────────────────────────────
 range         3       3       1         0        6        1           1-5          3-4
 settled       4       2       1         0        2        2           1-5          3-4

"""


def test_several_assignors_are_compared() -> None:
    assert shown(run("--assignor", "range", "--assignor", "own:settled", spec=SPEC)) == SEVERAL


WEIGHTED = """\
Partitions of each member

 member   capacity   before   load before   after   load after
 ────────────────────────────────────────────────────────────────
 a               2        0             0       1         12.5
 b               1        0             0       1            1

What range moves

 partitions   from   to   round   why
 ──────────────────────────────────────────────────────────────
 t 0          -      a        1   no member owned any partition
 t 1          -      b        1   no member owned any partition

Totals

 assignor   kept   moved   given   dropped   paused   rounds   each before   each after
 ──────────────────────────────────────────────────────────────────────────────────────
 range         0       0       2         0        0        1             0            1

"""


def test_loads_and_capacities() -> None:
    spec = {
        "members": {"a": {"topics": ["t"], "capacity": 2}, "b": {"topics": ["t"]}},
        "topics": {"t": 2},
        "loads": {"t": {"0": 12.5}},
    }
    assert shown(run("--assignor", "range", spec=spec)) == WEIGHTED


WHAT_IF = """\
Partitions of each member

 member   before   after
 ────────────────────────────────
 a             5       3
 new-1         0       4   joins
 node-2        1       0   leaves

Claims that do not count

 partition   member   why
 ────────────────────────────────────────────────────────
 orders/0    node-2   a claimed it later, in generation 7

What roundrobin moves

 partitions   from     to      round   why
 ─────────────────────────────────────────────────────────────────────
 audit 0      node-2   new-1       1   node-2 left
 orders 1     a        new-1       1   roundrobin ignores who owned it
 orders 3     a        new-1       1   balance: a 5 -> 3, new-1 0 -> 4
 orders 5     -        new-1       1   no member owned it

Totals

 assignor     kept   moved   given   dropped   paused   rounds   each before   each after
 ────────────────────────────────────────────────────────────────────────────────────────
 roundrobin      3       3       1         0        6        1           1-5          3-4

"""


def test_plans_for_a_member_that_leaves_and_one_that_joins() -> None:
    arguments = ("--assignor", "roundrobin", "--remove", "node-2", "--add", "1")
    assert shown(run(*arguments, spec=SPEC)) == WHAT_IF


NOTHING = """\
Partitions of each member

 member   before   after
 ──────────────────────────
 a             1       1

range moves nothing.

Totals

 assignor   kept   moved   given   dropped   paused   rounds   each before   each after
 ──────────────────────────────────────────────────────────────────────────────────────
 range         1       0       0         0        1        1             1            1

"""


def test_a_plan_without_moves_is_printed() -> None:
    spec = {"members": {"a": {"topics": ["t"], "owned": {"t": [0]}}}, "topics": {"t": 1}}
    assert shown(run("--assignor", "range", spec=spec)) == NOTHING


def test_an_incomplete_unstable_assignor_is_reported(here: Path) -> None:
    (here / "restless.py").write_text(
        "def restless(spec):\n"
        "    x, y = sorted(spec.members)\n"
        "    tps = spec.members[x].owned or spec.members[y].owned\n"
        "    return {y if spec.members[x].owned else x: tps}\n"
        "restless.cooperative = True\n"
    )
    spec = {
        "members": {"a": {"topics": ["t"], "owned": {"t": [0]}}, "b": {"topics": ["t"]}},
        "topics": {"t": 3},
    }
    found = shown(run("--assignor", "restless:restless", spec=spec))
    assert "\nrestless assigns to no member: t 1-2\n" in found
    assert "\nrestless does not converge: members still revoke partitions after 10 rounds." in found


def test_a_narrow_terminal_shows_everything() -> None:
    name = "a-member-with-a-long-name-of-its-own"
    spec = {"members": {name: {"topics": ["t"]}}, "topics": {"t": 1}}
    found = run("--assignor", "range", spec=spec, width=30)
    assert max(map(len, found.stdout.splitlines())) <= 30
    assert "…" not in found.stdout


def test_names_cannot_control_the_terminal() -> None:
    name = "[red]x\x1b[31m\n\ud800"
    spec = {"members": {name: {"topics": ["t"]}}, "topics": {"t": 1}}
    found = run("--assignor", "range", spec=spec)
    assert found.exit_code == 0
    assert "[red]x\\x1b[31m\\n\\ud800" in found.stdout
    assert "\x1b" not in found.stdout


def test_json() -> None:
    found = run("--assignor", "own:settled", "--json", spec=SPEC)
    assert (found.exit_code, found.stderr) == (0, "")
    stale = {
        "member_id": "b-0001",
        "topic": "orders",
        "partition": 0,
        "reason": "claim-stale",
        "text": "a claimed it later, in generation 7",
    }
    assert json.loads(found.stdout) == {
        "plans": [
            {
                "assignor": "settled",
                "cooperative": True,
                "settled": True,
                "members": [
                    {
                        "member_id": "b-0001",
                        "instance_id": "node-2",
                        "change": "stays",
                        "before": {"audit": [0]},
                        "after": {"audit": [0], "orders": [3, 4]},
                        "load_before": 1.0,
                        "load_after": 3.0,
                        "capacity": 1.0,
                    },
                    {
                        "member_id": "a",
                        "instance_id": None,
                        "change": "stays",
                        "before": {"orders": [0, 1, 2, 3, 4]},
                        "after": {"orders": [0, 1, 2, 5]},
                        "load_before": 5.0,
                        "load_after": 4.0,
                        "capacity": 1.0,
                    },
                ],
                "moves": [
                    {
                        "topic": "orders",
                        "partition": partition,
                        "from": giver,
                        "to": taker,
                        "round": number,
                        "reason": reason,
                        "text": text,
                    }
                    for partition, giver, taker, number, reason, text in (
                        (
                            3,
                            "a",
                            "b-0001",
                            2,
                            "not-sticky",
                            "settled ignores who owned it",
                        ),
                        (4, "a", "b-0001", 2, "balance", "balance: a 5 -> 4, node-2 1 -> 3"),
                        (5, None, "a", 1, "unowned", "no member owned it"),
                    )
                ],
                "void_claims": [stale],
                "rounds": [
                    {
                        "revoked": {"a": {"orders": [3, 4]}, "b-0001": {"orders": [0]}},
                        "assigned": {"a": {"orders": [5]}},
                    },
                    {"revoked": {}, "assigned": {"b-0001": {"orders": [3, 4]}}},
                ],
                "paused": {"orders": [3, 4]},
                "unassigned": {},
                "totals": {"kept": 4, "moved": 2, "given": 1, "dropped": 0, "paused": 2},
                "spread": {"before": {"least": 1, "most": 5}, "after": {"least": 3, "most": 4}},
            }
        ]
    }


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "plan: give either --spec FILE or --group GROUP"),
        (("--spec", "-", "--group", "g"), "plan: give either --spec FILE or --gr"),
        (("--spec", "-"), "plan: give --assignor: "),
        (("--spec", "none.json", "--assignor", "range"), "plan: Invalid value for '--spec': "),
        (("--spec", "latin-1", "--assignor", "range"), "plan: latin-1 is not UTF-8: "),
        (("--spec", "-", "--assignor", "range"), "the spec: not valid JSON: Expecting value"),
        (("--spec", "-", "--assignor", "rage"), "there is no assignor 'rage'; expected "),
        (("--spec", "-", "--assignor", ":f"), "there is no assignor ':f'; expected "),
        (("--spec", "-", "--assignor", "none:f"), "assignor 'none:f': ModuleNotFoundError: No mo"),
        (("--spec", "-", "--assignor", "own:f"), "assignor 'own:f': AttributeError: module 'own'"),
        (("--spec", "-", "--assignor", "own:number"), "assignor 'own:number' is 3; expected a fu"),
        (("--spec", "-", "--assignor", "range", "--assignor", "range"), "plan: an --assignor is "),
        (("--group", "g", "--add", "-1"), "plan: Invalid value for '--add': "),
        (("--group", "g", "--bootstrap-server", "a:b"), "--bootstrap-servers has 'a:b'; expected "),
        (("--nonsense",), "plan: No such option"),
    ],
)
def test_bad_input_is_one_line_that_helps(
    here: Path, arguments: tuple[str, ...], line: str
) -> None:
    (here / "latin-1").write_bytes(b"\xe9")
    assert_failed(run(*arguments), 2, line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--remove", "c", "--assignor", "range"), "'c' is not in the group; its members: a, b-00"),
        (("--assignor", "own:strangers"), "assignor 'strangers' assigns to 'z', which is not a m"),
        (("--assignor", "own:broken"), "assignor 'broken' raised ValueError: one two ("),
    ],
)
def test_options_that_contradict_the_group_are_refused(
    arguments: tuple[str, ...], line: str
) -> None:
    assert_failed(run(*arguments, spec=SPEC), 2, line)


def assert_failed(result: Result, exit_code: int, line: str) -> None:
    """Check for exactly one line on stderr, with this start."""
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr.startswith(f"kafkagroup: {line}")
    assert result.stderr.count("\n") == 1
    assert isinstance(result.exception, SystemExit)


def test_an_unresponsive_server_is_an_error() -> None:
    assert_failed(run("--group", "g", "--bootstrap-server", "127.0.0.1:1"), 1, "no broker answere")


def test_arguments_cannot_control_the_terminal(here: Path) -> None:
    (here / "\x1b[2J").write_bytes(b"\xe9")
    found = run("--spec", "\x1b[2J", "--assignor", "range")
    assert_failed(found, 2, "plan: \\x1b[2J is not UTF-8: ")


def test_an_unknown_command_is_an_error() -> None:
    assert_failed(CliRunner().invoke(app, ["plans"]), 2, "No such command 'plans'.")


def test_help_lists_every_command_and_assignor() -> None:
    found = CliRunner().invoke(app, ["--help"])
    assert found.exit_code == 0
    assert all(f"  {name} " in found.stdout for name in _app.COMMANDS)
    found = CliRunner().invoke(app, ["plan", "--help"])
    assert found.exit_code == 0
    for name in ("cooperative-sticky", "range", "roundrobin"):
        assert name in found.stdout


# ---------------------------------------------------------------- live, and as a program


def test_a_running_group_is_planned() -> None:
    with EmbeddedKafka({"orders": 2}) as kafka:
        found = anyio.run(_planned, kafka.bootstrap_servers)
    (plan,) = json.loads(found.stdout)["plans"]
    (member,) = plan["members"]
    assert plan["assignor"] == "cooperative-sticky"
    assert member["before"] == member["after"] == {"orders": [0, 1]}
    assert plan["totals"] == {"kept": 2, "moved": 0, "given": 0, "dropped": 0, "paused": 0}


async def _planned(servers: str) -> Result:
    """Planned with the assignor of the group, as none is given."""
    worker = Worker(servers, "orders", assignors=[cooperative_sticky_assignor])
    async with worker.consumer:
        await until(lambda: worker.owns == [0, 1])
        return await anyio.to_thread.run_sync(
            lambda: run("--group", "orders", "--bootstrap-server", servers, "--json")
        )


def test_a_running_group_with_a_custom_assignor_is_an_error() -> None:
    """Its name is known, its function is not."""

    async def story(servers: str) -> Result:
        metadata = encode_subscription(Subscription(topics=("orders",)))
        protocol = GroupProtocol("consumer", "theirs", metadata, lambda members: {})
        async with GroupMember("g", protocol, bootstrap_servers=servers) as member:
            await member.wait_generation()
            found = await anyio.to_thread.run_sync(
                lambda: run("--group", "g", "--bootstrap-server", servers)
            )
            await member.stop()
        return found

    with EmbeddedKafka({"orders": 1}) as kafka:
        found = anyio.run(story, kafka.bootstrap_servers)
    assert_failed(found, 2, "there is no assignor 'theirs'; expected ")


def test_plan_runs_as_a_program(here: Path) -> None:
    (here / "spec.json").write_text(json.dumps(SPEC))
    command = [sys.executable, "-m", "kafkagroup", "plan", "--spec", "spec.json"]
    plain = {**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"}
    done = subprocess.run(
        [*command, "--assignor", "range"], capture_output=True, encoding="utf-8", env=plain
    )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr, lines) == (0, "", ONE.splitlines())
    done = subprocess.run([*command, "--assignor", "rage"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_the_error_names_what_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import kafkagroup.cli as c; c.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"kafkagroup: the command line needs {missing}: pip install 'kafkagroup[cli]'\n",
    )
