"""Kafka's own assignors in Java, from the jars that `LocalKafka` runs: their assignments and speed.

Each call runs one JVM over all its cases (`java/Assignors.java`, compiled at its start). A machine
without Java or the jars raises `LocalKafkaUnavailable` with the reason.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from kafkagroup.assign import GroupSpec
from kafkagroup.testing._jars import LocalKafkaError, resolve_jars
from kafkagroup.testing._jars import find_java as find_command
from kafkagroup.types import Assignment, TopicPartition

RELEASE = "4.3.1"
NEWEST_VERSION = 3
"""Of subscriptions."""


@attrs.frozen
class Java:
    """The command to run Java with Kafka on its class path."""

    command: str
    jars: Path


@attrs.frozen(kw_only=True)
class Case:
    """A group for one of Java's assignors: range, roundrobin, sticky or cooperative-sticky."""

    assignor: str
    spec: GroupSpec
    versions: Mapping[str, int] = attrs.field(factory=dict)
    """Member id -> version of its subscription; what is missing has the newest."""


def find_java() -> Java:
    """Raises: LocalKafkaUnavailable without Java, or without jars and a way to download them."""
    command = find_command()
    return Java(command, resolve_jars(RELEASE, command))


@cache
def compiled(source: Path) -> Path:
    """Return a folder with the classes of a program, compiled once per process: compiling at each
    start, as `java Member.java` does, takes longer than starting."""
    java = find_java()
    classes = tempfile.TemporaryDirectory(prefix="kafkagroup-java-")
    _folders.append(classes)
    # Only launchers expand the `*` of a class path.
    jars = ":".join(map(str, java.jars.glob("*.jar")))
    compiler = (
        java.command,
        "-XX:TieredStopAtLevel=1",
        "-m",
        "jdk.compiler/com.sun.tools.javac.Main",
    )
    command = [*compiler, "-cp", jars, "-d", classes.name, str(source)]
    subprocess.run(command, check=True, timeout=120)
    return Path(classes.name)


_folders: list[tempfile.TemporaryDirectory[str]] = []
"""They are removed when the process ends."""


def assign(cases: Iterable[Case], *, timeout: float = 600.0) -> list[Assignment | None]:
    """Return Java's assignment of each case, within `timeout` seconds; None if its assignor fails.
    Raises: LocalKafkaUnavailable; LocalKafkaError with Java's output when it fails."""
    # Starts in half the time; so short a run gains nothing from the second compiler.
    responses = _run(["-XX:TieredStopAtLevel=1"], "assign", cases, (), timeout)
    return [None if response is None else _assignment(response) for response in responses]


def time_assignor(
    assignor: str, spec: GroupSpec, warmup: int, repeats: int, *, timeout: float = 600.0
) -> list[float]:
    """Return the seconds of each of `repeats` runs, from Java's objects to its assignment, after at
    least `warmup` runs, and up to three times as many while they get faster. Raises: as
    `assign`."""
    case = Case(assignor=assignor, spec=spec)
    (times,) = _run([], "time", [case], (str(warmup), str(repeats)), timeout)
    return [milliseconds / 1e3 for milliseconds in times]


def _run(
    options: Sequence[str],
    mode: str,
    cases: Iterable[Case],
    arguments: Sequence[str],
    timeout: float,
) -> list[Any]:
    java = find_java()
    program = Path(__file__).parent / "java" / "Assignors.java"
    # A doubled claim is an error in Java's eyes; printing them would take longer than assigning.
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "cases")
        with file.open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(_as_json(case)) + "\n" for case in cases)
        command = [java.command, *options, quiet, "-cp", f"{java.jars}/*", str(program)]
        done = subprocess.run(
            [*command, mode, str(file), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    if done.returncode != 0:
        raise LocalKafkaError(f"java failed ({done.returncode}): {done.stderr.decode()[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _as_json(case: Case) -> dict[str, object]:
    spec = case.spec
    return {
        "assignor": case.assignor,
        "topics": {
            topic: [sorted(racks) for racks in spec.racks.get(topic, [frozenset[str]()] * count)]
            for topic, count in spec.partitions.items()
        },
        "members": [
            {
                "id": member,
                "instance": of.instance_id,
                "rack": of.rack,
                "topics": sorted(of.topics),
                "owned": _by_topic(of.owned),
                "generation": of.generation,
                "version": case.versions.get(member, NEWEST_VERSION),
            }
            for member, of in spec.members.items()
        ],
    }


def _assignment(response: Mapping[str, Mapping[str, Sequence[int]]]) -> Assignment:
    return {
        member: tuple(sorted(TopicPartition(t, p) for t, numbers in held.items() for p in numbers))
        for member, held in response.items()
    }


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found
