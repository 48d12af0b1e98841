"""One attack against one client: the broker in this process, the client in another."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from kafkagroup.testing import EmbeddedKafka

from .honest import serving
from .server import Conversation, listening

__all__ = ["MEBIBYTE", "PASSWORD", "Attack", "Result", "trials"]

MEBIBYTE = 2**20

PASSWORD = "correct-horse-battery-staple"
"""What clients authenticate with: it must not be seen anywhere."""

MAX_LINE = 2_000
"""Most characters of a log line or an error: more is the broker's text, not ours."""

_ROOT = Path(__file__).parents[3]
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@attrs.frozen(kw_only=True)
class Attack:
    """An attack of a broker, and the expected end of the client."""

    name: str
    family: str
    does: Callable[[], Conversation]
    """Makes the broker: a new one for each trial, as some count their connections."""
    client: str
    """The client that meets it: a name in `client.CLIENTS`."""
    job: Mapping[str, Any] = attrs.field(factory=dict)
    """Options of that client."""
    ends: str
    """What the application gets, to the letter: a type with its message, or a value. The broker's
    address is HOSTILE, and `...` stands for anything."""
    warns: str = ""
    """What a warning in the log must contain; "": none need be there."""
    mebibytes: float = 8
    """Most that the client's memory may grow by."""
    requests: int = 1_000
    """Most that the client may send: it must not hammer a broker that gives it no peace."""
    late: float = 1.0
    """Most seconds that another task of the loop may be late: many times what an idle machine
    shows, so that a busy one reports only what is of another order."""
    long: bool = False
    """Whether it takes seconds: left to `python -m tests.verification.hostile`."""


@attrs.frozen(kw_only=True)
class Result:
    """The end of the client."""

    end: str
    seconds: float
    mebibytes: float
    stall: float
    """Longest that the other consumer waited for a record, in seconds."""
    late: float
    """Seconds that a task of the same loop, which wants to run every millisecond, was late at
    most."""
    delivered: int
    """Records that the other consumer got meanwhile."""
    redialled: int
    """How many connections the other consumer had to open again."""
    requests: int
    """What the broker was sent."""
    log: tuple[str, ...]
    """Each line with its level before it."""

    def faults(self, attack: Attack) -> list[str]:
        """Return the differences from what is expected."""
        found = []
        pattern = re.escape(attack.ends).replace(re.escape("..."), ".*")
        if not re.fullmatch(pattern, self.end, re.DOTALL):
            found.append(f"ended otherwise: {self.end[:500]!r}, expected {attack.ends!r}")
        warned = [line for line in self.log if line.startswith("WARNING ")]
        if attack.warns and not any(attack.warns in line for line in warned):
            found.append(f"there was no warning of {attack.warns!r}")
        if self.mebibytes > attack.mebibytes:
            found.append(f"memory grew by {self.mebibytes:.1f} MiB; allowed {attack.mebibytes}")
        if self.late > attack.late:
            found.append(f"another task was {self.late:.3f} s late; allowed {attack.late:g}")
        if not self.delivered or self.redialled:
            found.append(
                f"the other consumer got {self.delivered} records,"
                f" and {self.redialled} connections of its were lost"
            )
        if self.requests > attack.requests:
            found.append(f"{self.requests} requests; allowed {attack.requests}")
        for line in (self.end, *self.log):
            if len(line) > MAX_LINE:
                found.append(f"{len(line)} characters of text: {line[:120]!r}")
            elif _UNPRINTABLE.search(line):
                found.append(f"text that is not escaped: {line[:200]!r}")
            elif PASSWORD in line:
                found.append(f"the password is shown: {line[:200]!r}")
        return found[:5]


@contextmanager
def trials(backend: str = "asyncio") -> Iterator[Callable[[Attack], Result]]:
    """Return a function that runs one attack, against clients on this event loop."""
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.produce("t", ["good"])
        good = int(kafka.bootstrap_servers.rpartition(":")[2])
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.verification.hostile.client"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        to_client, from_client = process.stdin, process.stdout

        def ask(client: str, options: Mapping[str, Any], broker: Conversation) -> dict[str, Any]:
            with listening(broker) as server:
                job = {"client": client, "port": server.port, "good": good, "backend": backend}
                to_client.write(json.dumps({**job, **options}) + "\n")
                to_client.flush()
                response: dict[str, Any] = json.loads(from_client.readline())
                return response | {"requests": server.asked}

        def run(attack: Attack) -> Result:
            response = ask(attack.client, attack.job, attack.does())
            if "died" in response:
                raise AssertionError(f"the client died: {response['died']}")
            grown = response.pop("grown") / MEBIBYTE
            return Result(**response | {"mebibytes": grown, "log": tuple(response["log"])})

        with process:
            try:
                ask("join", {}, serving())
                yield run
            finally:
                to_client.close()
