"""`kafkagroup pipeline` before Spark starts: one line about invalid arguments."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from kafkagroup.cli._app import app

LEAST = ("pipeline", "run", "--bootstrap-servers", "nowhere.invalid:1", "--out", "tables")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("pipeline", "run"), "run: Missing option '--out'."),
        ((*LEAST, "-X", "sasl"), "-X: expected NAME=VALUE"),
        ((*LEAST, "--every", "0"), "run: Invalid value for '--every': 0.0 is not in the range"),
    ],
)
def test_invalid_arguments_are_an_error(arguments: tuple[str, ...], told: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.output.startswith(f"kafkagroup: {told}")
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
