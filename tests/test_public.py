"""The public names, and the cost of importing them."""

from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import made
import pytest

import kafkagroup
from kafkagroup import errors

NAMES = [
    "Batch",
    "BrokerError",
    "CommitFailedError",
    "ConfigurationError",
    "Consumer",
    "ClosedError",
    "FencedError",
    "Generation",
    "GroupMember",
    "GroupProtocol",
    "KafkaGroupError",
    "OffsetAndMetadata",
    "Record",
    "TopicPartition",
]


def test_the_version_is_that_of_the_distribution() -> None:
    assert kafkagroup.__version__ == importlib.metadata.version("kafkagroup")


def test_no_other_file_repeats_the_version() -> None:
    """Brokers got "0.1", with every version that was installed."""
    root = Path(kafkagroup.__file__).parents[1]
    files = [*root.glob("*.toml"), *root.glob("*.py"), *root.glob("*.yml")]
    files += (root / "kafkagroup").rglob("*.py")
    repeating = {path.name for path in files if kafkagroup.__version__ in path.read_text("utf-8")}
    assert repeating == {"_version.py"}


OPTIONS = [
    "bootstrap_servers",
    "group_id",
    "pattern",
    "group_instance_id",
    "client_id",
    "assignors",
    "auto_offset_reset",
    "enable_auto_commit",
    "auto_commit_interval_ms",
    "committed_offsets_max_age_ms",
    "group_protocol",
    "security",
    "leave_group_on_close",
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "rebalance_timeout_ms",
    "max_poll_interval_ms",
    "fetch_min_bytes",
    "fetch_max_bytes",
    "max_partition_fetch_bytes",
    "fetch_max_wait_ms",
    "isolation_level",
    "check_crcs",
    "client_rack",
    "metadata_max_age_ms",
    "retry_backoff_ms",
    "retry_backoff_max_ms",
    "request_timeout_ms",
    "close_timeout",
    "exclude_internal_topics",
    "on_partitions_assigned",
    "on_partitions_revoked",
    "on_partitions_lost",
    "views",
    "key_deserializer",
    "value_deserializer",
    "on_deserialization_error",
]
METHODS = [
    "__aenter__",
    "__aexit__",
    "__aiter__",
    "__anext__",
    "start",
    "stop",
    "batches",
    "getone",
    "getmany",
    "commit",
    "committed",
    "position",
    "assignment",
    "subscribe",
    "unsubscribe",
    "assign",
]
FIELDS = [
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
    "leader_epoch",
]


def run(program: str) -> str:
    """Return the output of a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_public_names() -> None:
    """Every public name; a removed name needs an entry in the changelog."""
    assert set(kafkagroup.__all__) >= set(NAMES)
    assert list(kafkagroup.__all__) == sorted(kafkagroup.__all__)
    for module in (kafkagroup, kafkagroup.wire, kafkagroup.assign):
        assert dir(module) == sorted(module.__all__)


def test_the_public_names_used_by_applications() -> None:
    """As above: names may be added, none removed."""
    topics, *options = list(inspect.signature(kafkagroup.Consumer).parameters.values())
    assert (topics.name, topics.kind) == ("topics", topics.VAR_POSITIONAL)
    assert {option.name for option in options} >= set(OPTIONS)
    assert [
        name for name in METHODS if not callable(getattr(kafkagroup.Consumer, name, None))
    ] == []
    assert list(kafkagroup.Record._fields) == FIELDS


def test_the_root_has_the_names_that_applications_write() -> None:
    """It had 82 names: who looked for a client found events, bytes and codes of the protocol. A new
    client may add its names, as the producer did."""
    assert len(kafkagroup.__all__) <= 53


def test_type_checkers_read_the_names_that_are_imported() -> None:
    """To update it: `python docs/site/made.py`."""
    assert made.STUB.read_text("utf-8") == made.stub()


def test_each_error_is_in_one_module() -> None:
    """Those that most applications catch are in the package, too; a task that reads beside another
    one gets an error of anyio's."""
    found = {name for name in kafkagroup.__all__ if name.endswith("Error")}
    assert found - set(errors.__all__) == {"ConsumerBusyError"}


@pytest.mark.parametrize("name", kafkagroup.__all__)
def test_every_public_name_resolves_to_its_object(name: str) -> None:
    value = getattr(kafkagroup, name)
    assert value.__name__ == name
    assert value.__doc__
    assert value is getattr(kafkagroup, name)


COMPILED = {"RecordFuture"}
"""A class of C reports the module that it stands in. Nobody pickles these."""

CLASSES = [
    name
    for name in kafkagroup.__all__
    if isinstance(getattr(kafkagroup, name), type) and name not in COMPILED
]


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_reports_the_package(name: str) -> None:
    """Tracebacks and pickles named modules that users never import, and that may move."""
    cls = getattr(kafkagroup, name)
    assert (cls.__module__, cls.__qualname__) == ("kafkagroup", name)


def test_a_public_class_reports_the_package_whatever_is_imported_first() -> None:
    for first in ("kafkagroup", "kafkagroup.types", "kafkagroup.wire.records", "kafkagroup.errors"):
        program = (
            f"import {first}\n"
            "from kafkagroup.errors import BrokerError\n"
            "from kafkagroup.types import Record, TopicPartition\n"
            "print(*(cls.__module__ for cls in (BrokerError, Record, TopicPartition)))"
        )
        assert run(program) == "kafkagroup kafkagroup kafkagroup\n"


@pytest.mark.parametrize("name", ["GroupMetrics", "Health"])
def test_tools_can_evaluate_the_types_of_public_values(name: str) -> None:
    """cattrs and similar tools evaluate the annotations, even if nothing else was imported."""
    program = (
        f"import attrs, kafkagroup\nfields = attrs.fields(kafkagroup.{name})\n"
        "print(any(isinstance(field.type, str) for field in fields))"
    )
    assert run(program) == "False\n"


def test_the_annotations_of_public_classes_can_be_evaluated() -> None:
    """get_type_hints looked for names such as Mapping in `kafkagroup`, and raised NameError."""
    program = """
import kafkagroup, typing
for name in kafkagroup.__all__:
    if isinstance(cls := getattr(kafkagroup, name), type):
        try:
            typing.get_type_hints(cls)
        except NameError as error:
            print(name, error.name)
"""
    # A name of kazoo, which is optional.
    assert run(program) == "ZooKeeperMembership ACL\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'kafkagroup' has no attribute 'Konsumer'$"):
        kafkagroup.Konsumer  # noqa: B018 - the access is the test


LIBRARY = {
    "bisect",
    "platform",  # as uuid wants it
    "uuid",
    "zlib",
}
"""What a consumer needs of Python's library beyond what asyncio and anyio import."""


def test_importing_the_consumer_imports_no_heavy_module() -> None:
    """Nothing that only some applications need: TLS and SASL, the parts of anyio that its backends
    import anyway, `attrs`, `argparse` and `email` (imported by a command of the checksum's
    package), the protocol of KIP-848."""
    program = (
        "import sys, kafkagroup\n"
        "from kafkagroup import KafkaGroupError, TopicPartition\n"
        "print(sorted({'anyio', 'asyncio', 'attr', 'cramjam', 'ssl'} & set(sys.modules)))\n"
        "import asyncio, anyio\n"
        "known = set(sys.modules)\n"
        "from kafkagroup import Consumer\n"
        "new = set(sys.modules) - known\n"
        "print(*sorted(name for name in new if not name.startswith(('kafkagroup', '_'))))\n"
        "print(*sorted(name for name in new if name.startswith('kafkagroup.member.')))\n"
        "from kafkagroup.runtime.client import late_modules\n"
        "late = [n for n in vars(late_modules).values() if isinstance(n, tuple) for n in n]\n"
        "print(*sorted(set(late) & new))\n"
    )
    light, others, steps, late = run(program).splitlines()
    assert light == "[]"
    packages = {"anyio._core", "anyio._core._exceptions", "cramjam", "cramjam.cramjam"}
    assert set(others.split()) - {"cython_runtime"} <= LIBRARY | packages
    # The words of the steps, for the history: a step is for whoever starts such a member.
    assert steps.split() == [
        "kafkagroup.member.consumer_vocabulary",
        "kafkagroup.member.vocabulary",
    ]
    assert late == ""  # such as the engine, which a client imports when it starts


def test_assignors_and_wire_work_without_anyio() -> None:
    """For example on Spark's executors."""
    program = (
        "import sys\n"
        "sys.modules['anyio'] = None\n"
        "import kafkagroup.assign, kafkagroup.wire.records, kafkagroup.wire.embedded_protocol\n"
        "import kafkagroup.member.classic, kafkagroup.consume.delivery\n"
        "print('fine')\n"
    )
    assert run(program) == "fine\n"


def test_the_package_is_marked_as_typed() -> None:
    assert Path(kafkagroup.__file__).with_name("py.typed").exists()
