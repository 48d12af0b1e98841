"""The first example, run as a reader does."""

from __future__ import annotations

import signal

from example_process import end, running

from kafkagroup.testing import EmbeddedKafka


def test_the_consumer_prints_produced_records_and_commits_them_on_ctrl_c() -> None:
    with EmbeddedKafka({"greetings": 1}) as kafka:
        kafka.produce("greetings", ["hello", "world"])
        with running("consumer.py", kafka.bootstrap_servers, "greetings", "me") as process:
            assert process.stdout is not None
            lines = [process.stdout.readline(), process.stdout.readline()]
            rest, errors = end(process, signal.SIGINT)
        assert (lines, rest, errors) == (["0/0: hello\n", "0/1: world\n"], "", "")
        assert process.returncode == 0
        assert kafka.committed("me", "greetings") == {0: 2}
        assert kafka.group_state("me") == "Empty"
