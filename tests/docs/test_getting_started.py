"""docs/getting-started.md as its readers follow it: files, three shells, and their output.

The blocks run in the order of the page, in separate processes. Only ports differ: the page has
fixed ones, which other programs may use here. A program that still runs when its shell gets the
next command is stopped with Ctrl-C, as the page says.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks
from sessions import environment, pattern

PAGE = ROOT / "docs" / "getting-started.md"

_TIMEOUT = 60.0
_ENDLESS = re.compile(r"kafkagroup broker|python \w+\.py")
"""Commands that run until Ctrl-C."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [taken.getsockname()[1] for taken in sockets]
    finally:
        for taken in sockets:
            taken.close()


class Shell:
    """One of the reader's shells."""

    def __init__(self, name: str, folder: Path, servers: str) -> None:
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._log.touch()
        self._read = 0
        self._running: subprocess.Popen[bytes] | None = None
        self._environment = environment(servers)

    def type(self, command: str) -> None:
        """Run a command; wait if it ends by itself."""
        self.interrupt()
        self._read = self._log.stat().st_size
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(
                ["bash", "-ec", f"exec {command}" if _ENDLESS.match(command) else command],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        if not _ENDLESS.match(command):
            assert self._running.wait(_TIMEOUT) == 0, (command, self.printed())
            self._running = None

    def printed(self) -> list[str]:
        """Return the lines since the last command, or since the last expected ones."""
        text = self._log.read_bytes()[self._read :].decode()
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    def expect(self, lines: list[str], *, only_end: bool) -> None:
        """Wait for these lines. Those of one partition come in the order of the page."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            seen = self.printed()
            if are_as_shown(lines, seen[-len(lines) :] if only_end else seen):
                break
            assert time.monotonic() < deadline, (seen, lines)
            time.sleep(0.02)
        self._read = self._log.stat().st_size

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        if self._running is not None:
            self._running.send_signal(signal.SIGINT)
            code = self._running.wait(_TIMEOUT)
            self._running = None
            text = self._log.read_text("utf-8")
            assert code == 0 or "ValueError: b'joe' ordered nothing" in text, text
            assert "cancel scope" not in text, text


def partition_of(line: str) -> str:
    """Return what the line says first of its record's partition, which is its number or a key."""
    found = re.search(r"b'[a-z]+'|\b\d+\b", line)
    return found[0] if found else ""


def are_as_shown(shown: list[str], printed: list[str]) -> bool:
    """Return whether the lines are the same, and those of each partition in the same order."""
    one, other = (sorted(lines, key=partition_of) for lines in (shown, printed))
    return len(one) == len(other) and all(
        re.fullmatch(pattern(line), found) for line, found in zip(one, other, strict=True)
    )


def test_records_of_one_key_keep_their_order() -> None:
    """The page once showed a record of `ann` before an earlier one, which cannot happen."""
    shown = ["processed b'ann' b'many'", "processed b'joe' b'1'", "processed b'ann' b'4'"]
    assert are_as_shown(shown, [shown[1], shown[0], shown[2]])
    assert not are_as_shown(shown, [shown[2], shown[1], shown[0]])
    assert not are_as_shown(shown, shown[:2])


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[tuple[dict[str, Shell], dict[str, str]]]:
    """Provide three shells, and replacements for the page's ports."""
    kafka, web = free_ports(2)
    ports = {":9092": f":{kafka}", "8080": f"{web}", "orders:4": f"orders:4 --port {kafka}"}
    shells = {f"shell {n}": Shell(f"{n}", tmp_path, f"127.0.0.1:{kafka}") for n in (1, 2, 3)}
    yield shells, ports
    for shell in reversed(shells.values()):
        shell.interrupt()


@pytest.mark.slow
def test_the_page_runs_as_printed(
    shells: tuple[dict[str, Shell], dict[str, str]], tmp_path: Path
) -> None:
    named, ports = shells
    done = 0
    for block in blocks(PAGE):
        if not block.title:
            continue
        text = block.text
        for shown, real in ports.items():
            text = text.replace(shown, real)
        match block.language:
            case "python":
                (tmp_path / block.title).write_text(text, "utf-8")
            case "sh":
                named[block.title].type(text.strip())
            case "text":
                name, does = block.title[:7], block.title[8:]
                assert does in ("prints", "ends with"), block.where
                lines = [line for line in text.splitlines() if line.strip()]
                named[name].expect(lines, only_end=does == "ends with")
        done += 1
    assert done > 20
