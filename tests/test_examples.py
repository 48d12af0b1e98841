"""The examples, run as a reader would run them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from kafkagroup.testing import EmbeddedKafka

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_consumer_prints_what_is_produced_and_commits_it_on_ctrl_c() -> None:
    with EmbeddedKafka({"greetings": 1}) as kafka:
        kafka.produce("greetings", ["hello", "world"])
        with subprocess.Popen(
            [sys.executable, EXAMPLES / "consumer.py", kafka.bootstrap_servers, "greetings", "me"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline(), process.stdout.readline()]
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=30)
        assert (lines, rest, errors) == (["0/0: hello\n", "0/1: world\n"], "", "")
        assert process.returncode == 0
        assert kafka.committed("me", "greetings") == {0: 2}
        assert kafka.group_state("me") == "Empty"
