"""What users see: the public names, and that importing them costs little."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kafkagroup

NAMES = [
    "Batch",
    "Broker",
    "BrokerError",
    "CommitFailedError",
    "ConfigurationError",
    "Consumer",
    "ConsumerClosedError",
    "FencedError",
    "Generation",
    "GroupMember",
    "GroupProtocol",
    "KafkaGroupError",
    "OffsetAndMetadata",
    "Record",
    "TimestampType",
    "TopicPartition",
]


def run(program: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_public_names() -> None:
    """Everything that is promised; a name that goes needs a word in the changelog."""
    assert set(kafkagroup.__all__) >= set(NAMES)
    assert list(kafkagroup.__all__) == sorted(kafkagroup.__all__)
    assert dir(kafkagroup) == sorted(kafkagroup.__all__)


@pytest.mark.parametrize("name", kafkagroup.__all__)
def test_every_name_resolves_to_what_bears_it(name: str) -> None:
    value = getattr(kafkagroup, name)
    assert value.__name__ == name
    assert value.__doc__
    assert value is getattr(kafkagroup, name)


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match=r"^module 'kafkagroup' has no attribute 'Konsumer'$"):
        kafkagroup.Konsumer  # noqa: B018 - the access is the test


def test_importing_it_imports_nothing_heavy() -> None:
    program = (
        "import sys, kafkagroup\n"
        "from kafkagroup import KafkaGroupError, TopicPartition\n"
        "print(sorted({'anyio', 'asyncio', 'cramjam', 'crc32c', 'ssl'} & set(sys.modules)))\n"
        "from kafkagroup import Consumer\n"
        "print(sorted({'anyio', 'cramjam', 'crc32c'} & set(sys.modules)))\n"
    )
    assert run(program).splitlines() == ["[]", "['anyio', 'cramjam', 'crc32c']"]


def test_assignors_and_wire_run_where_anyio_is_missing() -> None:
    """On Spark's executors, say."""
    program = (
        "import sys\n"
        "sys.modules['anyio'] = None\n"
        "import kafkagroup.assign, kafkagroup.wire.records, kafkagroup.wire.group_log\n"
        "import kafkagroup.member.classic, kafkagroup.consume.delivery\n"
        "print('fine')\n"
    )
    assert run(program) == "fine\n"


def test_it_tells_type_checkers_that_it_is_typed() -> None:
    assert Path(kafkagroup.__file__).with_name("py.typed").exists()
