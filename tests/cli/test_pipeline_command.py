"""`kafkagroup pipeline` before Spark starts: one line about invalid arguments."""

from __future__ import annotations

import errno
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from kafkagroup import ConfigurationError
from kafkagroup.cli._app import app
from kafkagroup.errors import RequestTimeoutError

LEAST = ("pipeline", "run", "--bootstrap-servers", "nowhere.invalid:1", "--out", "tables")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pipeline", "run"), "run: Missing option '--out'."),
        ((*LEAST, "-X", "sasl"), "-X: expected NAME=VALUE"),
        ((*LEAST, "--every", "0"), "run: Invalid value for '--every': 0.0 is not in the range"),
        ((*LEAST, "--retention", "0"), "run: Invalid value for '--retention': 0.0 is not in the"),
        ((*LEAST, "--allowed", "-1"), "run: Invalid value for '--allowed': -1 is not in the range"),
        (("pipeline", "report"), "report: Missing option '--out'."),
    ],
)
def test_invalid_arguments_are_an_error(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.output.startswith(f"kafkagroup: {message}")
    assert result.output.count("\n") == 1


def test_without_spark_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    result = CliRunner().invoke(app, LEAST)
    assert result.exit_code == 2
    assert "pip install 'kafkagroup[pipeline]'" in result.output
    assert result.output.count("\n") == 1


def test_help_needs_no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    result = CliRunner().invoke(app, ["pipeline", "run", "--help"])
    assert result.exit_code == 0
    assert "--bootstrap-servers" in result.output


class Runs:
    """In place of Spark and the pipeline: each run raises its error; the last is interrupted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self._errors = [*errors, KeyboardInterrupt()]
        self.stopped = False
        pipeline = pytest.importorskip("kafkagroup.spark.pipeline")
        monkeypatch.setattr("kafkagroup.cli.pipeline.session", lambda: self)
        monkeypatch.setattr("kafkagroup.cli.pipeline.time.sleep", lambda seconds: None)
        monkeypatch.setattr(pipeline, "run", self.run)

    def run(self, *given: Any, **more: Any) -> None:
        raise self._errors.pop(0)

    def stop(self) -> None:
        self.stopped = True


OF_SPARK = """[PYTHON_DATA_SOURCE_ERROR] Failed when reading:
Traceback (most recent call last):
  File "reading.py", line 7, in read
    raise data_loss()
kafkagroup.spark.ranges.DataLossError: a/0 is to be read at 3, but has 5 to 9

JVM stacktrace:
org.apache.spark.SparkException: Job aborted
Caused by: java.lang.RuntimeException: again
Traceback (most recent call last):
  ValueError: another one
"""


def test_a_failed_run_is_one_line_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = pytest.importorskip("pyspark.errors")
    runs = Runs(monkeypatch, errors.PySparkException(OF_SPARK))
    result = CliRunner().invoke(app, LEAST)
    assert (result.exit_code, runs.stopped) == (1, True)
    assert result.output == (
        "kafkagroup: Spark failed: DataLossError: a/0 is to be read at 3, but has 5 to 9\n"
    )


def test_a_file_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was reported as a failure of Spark."""
    Runs(monkeypatch, PermissionError(errno.EACCES, "Permission denied", "loads.json"))
    result = CliRunner().invoke(app, LEAST)
    assert result.exit_code == 1
    assert result.output == "kafkagroup: loads.json: Permission denied\n"


def test_with_every_a_failed_run_is_reported_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = pytest.importorskip("pyspark.errors")
    failures = (
        RequestTimeoutError("no response in 30 s"),
        errors.PySparkException("no space left"),
    )
    runs = Runs(monkeypatch, *failures)
    result = CliRunner().invoke(app, [*LEAST, "--every", "60"])
    assert (result.exit_code, runs.stopped) == (0, True)
    first, second = (line.split("  ", 1)[1] for line in result.output.splitlines())
    assert first == "failed, and runs again in 60 s: no response in 30 s"
    assert second == "failed, and runs again in 60 s: Spark failed: no space left"


def test_a_wrong_option_ends_the_command_also_with_every(monkeypatch: pytest.MonkeyPatch) -> None:
    Runs(monkeypatch, ConfigurationError("no such option"))
    result = CliRunner().invoke(app, [*LEAST, "--every", "60"])
    assert result.exit_code == 2
    assert result.output == "kafkagroup: no such option\n"


SELECTED = ("--group", "orders-*", "--group", "billing", "--exclude", "*-test")


def test_the_report_is_of_the_selected_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """99 ended groups hid the living ones in the report, and no option left them out."""
    Runs(monkeypatch)
    report, pipeline, tables = (
        pytest.importorskip(f"kafkagroup.spark.{name}")
        for name in ("report", "pipeline", "stored_tables")
    )
    made: list[Any] = []

    def write(tables: Any, **more: Any) -> str:
        made.append(more)
        return "tables/report.html"

    monkeypatch.setattr(report, "write_report", write)
    monkeypatch.setattr(pipeline, "run", lambda *given, **more: made.append(more["allowed"]))
    monkeypatch.setattr(tables.Tables, "exists", lambda self, name: self.root == "tables")
    selected = {"groups": ("orders-*", "billing"), "exclude": ("*-test",)}

    result = CliRunner().invoke(app, [*LEAST, *SELECTED, "--allowed", "500"])
    assert result.stdout == "tables/report.html\n"
    assert made == [500, selected]

    result = CliRunner().invoke(app, ["pipeline", "report", "--out", "tables", *SELECTED])
    assert result.stdout == "tables/report.html\n"
    assert made == [500, selected, selected]

    result = CliRunner().invoke(app, ["pipeline", "report", "--out", "nowhere"])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "kafkagroup: there are no tables in nowhere: kafkagroup pipeline run writes them"
    ]
