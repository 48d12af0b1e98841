"""The offset logs in checkpoints, as Spark 4.3 writes them, and the command that reads them."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kafkagroup import ConfigurationError, TopicPartition
from kafkagroup.cli._app import app
from kafkagroup.spark.checkpoints import positions_of_sources
from kafkagroup.spark.ranges import Positions

METADATA = (
    '{"batchWatermarkMs":0,"batchTimestampMs":1795736880000,"conf":{"spark.sql.shuffle.partitions":'
    '"2"}}'
)
SPARKS_OWN = '{"orders":{"0":5,"1":3}}'
OURS = json.dumps(
    Positions({TopicPartition("orders", 1): 4}, {"orders": "id"}, "g", "cluster").to_json()
)
RATE = "1795736880000"


def test_sources_are_in_their_order_and_others_are_left_out() -> None:
    text = "\n".join(["v1", METADATA, SPARKS_OWN, "-", RATE, '{"logOffset":3}', OURS])
    own, *others, ours = positions_of_sources(text)
    assert own is not None
    assert own.by_topic() == {"orders": {"0": 5, "1": 3}}
    assert others == [None, None, None]
    assert ours is not None
    assert (ours.by_topic(), ours.group) == ({"orders": {"1": 4}}, "g")


def test_sources_with_names_are_in_version_2() -> None:
    text = "\n".join(["v2", METADATA, f"0:{SPARKS_OWN}", "lookup:-"])
    assert positions_of_sources(text) == [Positions.from_json(json.loads(SPARKS_OWN)), None]


@pytest.mark.parametrize("text", ["", "v3\n{}\n", "something else"])
def test_other_files_are_an_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected v1 or v2"):
        positions_of_sources(text)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint whose batch 10 has ended, and batch 11 has not."""
    for folder in ("commits", "offsets"):
        (tmp_path / folder).mkdir()
    for number, lines in {9: [SPARKS_OWN], 10: [SPARKS_OWN, RATE, OURS], 11: [RATE]}.items():
        log = "\n".join(["v1", METADATA, *lines])
        (tmp_path / "offsets" / str(number)).write_text(log)
        (tmp_path / "offsets" / f".{number}.crc").write_text("")
        if number < 11:
            (tmp_path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return tmp_path


def run(*arguments: Any) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["spark-offsets", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_last_batch_that_has_ended_is_printed(checkpoint: Path) -> None:
    ours = '{"orders":{"1":4}}'
    assert run(checkpoint) == (0, f"{SPARKS_OWN}\n{ours}\n", "source 0:\nsource 2:\n")
    assert run(checkpoint, "--source", "2") == (0, f"{ours}\n", "")
    assert run(checkpoint.as_uri(), "--source", "0", "--json") == (0, f"{SPARKS_OWN}\n", "")


def test_a_checkpoint_that_this_user_may_not_read_is_named(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a traceback."""

    def iterdir(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", iterdir)
    code, printed, message = run(checkpoint)
    assert (code, printed) == (2, "")
    assert message == (
        f"kafkagroup: the offsets of {checkpoint} cannot be read: [Errno 13] Permission denied:"
        f" '{checkpoint / 'commits'}'\n"
    )


def test_a_url_that_spark_cannot_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback of the JVM."""
    protocol = pytest.importorskip("py4j.protocol")
    files = pytest.importorskip("kafkagroup.spark.files")

    class Session:
        def stop(self) -> None: ...

    cause = 'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "abc"'

    def last_number(spark: Session, folder: str) -> None:
        error = protocol.Py4JError("An error occurred while calling o1.getFileSystem.\n")
        error.java_exception = cause
        raise error

    monkeypatch.setattr("kafkagroup.cli.spark_offsets.session", Session)
    monkeypatch.setattr(files, "last_number", last_number)
    message = f"kafkagroup: the offsets of abc://x/y cannot be read: {cause}\n"
    assert run("abc://x/y") == (2, "", message)


def test_a_checkpoint_without_the_offsets_of_its_last_batch_is_named(checkpoint: Path) -> None:
    (checkpoint / "offsets" / "10").unlink()
    code, _, message = run(checkpoint)
    assert code == 2
    assert message.startswith(f"kafkagroup: the offsets of {checkpoint} cannot be read: [Errno 2]")


def test_what_is_no_checkpoint_is_named(checkpoint: Path, tmp_path: Path) -> None:
    code, _, message = run(checkpoint, "--source", "1")
    assert (code, message) == (
        2,
        f"kafkagroup: {checkpoint} has no source 1 of Kafka: its query has 3 sources\n",
    )
    code, _, message = run(tmp_path / "nothing")
    assert code == 2
    assert message.startswith(
        f"kafkagroup: {tmp_path}/nothing is no checkpoint of a query that has"
    )
