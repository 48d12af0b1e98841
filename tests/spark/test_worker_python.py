"""Whether the Python of Spark's workers has the package; no Spark runs here."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from shipping import without_package

from kafkagroup import ConfigurationError
from kafkagroup.spark import register


class Session:
    """A session that notes what is registered."""

    def __init__(self, python: str, master: str = "local[2]", *files: str) -> None:
        self._sc = SimpleNamespace(pythonExec=python, master=master, _python_includes=[*files])
        self.registered: list[str] = []
        self.dataSource = SimpleNamespace(register=lambda kind: self.registered.append(kind.name()))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Python without the package."""
    return str(without_package(tmp_path_factory.mktemp("empty")))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is where workers look, too, and a checkout has the package."""
    monkeypatch.chdir(tmp_path)


def registered(session: Any) -> list[str]:
    register(session)
    found: list[str] = session.registered
    return found


def test_a_python_without_the_package_is_noticed_at_once(empty: str) -> None:
    """Queries failed with an error of cloudpickle, or with "Connection reset"."""
    session = Session(empty)
    with pytest.raises(ConfigurationError) as raised:
        registered(session)
    assert str(raised.value) == (
        f"the Python of Spark's workers, {empty}, has no kafkagroup: set the environment variable"
        f" PYSPARK_PYTHON to one with kafkagroup[spark], such as {sys.executable}, before the"
        " session is created"
    )
    assert session.registered == []


def test_a_python_that_does_not_exist_is_noticed_at_once() -> None:
    with pytest.raises(ConfigurationError, match="is 'no-python', which does not exist: set the"):
        registered(Session("no-python"))


def test_of_executors_elsewhere_it_is_a_warning(
    empty: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "kafkagroup"):
        assert registered(Session(empty, "spark://master:7077")) == ["kafkagroup"]
        assert registered(Session("./environment/bin/python", "yarn")) == ["kafkagroup"]
    (record,) = [r for r in caplog.records if r.name.endswith("worker_python")]
    assert "PYSPARK_PYTHON" in record.getMessage()
    assert record.getMessage().endswith("; on executors it may be another one")


def test_a_python_with_the_package_and_files_that_are_sent_are_accepted(empty: str) -> None:
    assert registered(Session(sys.executable)) == ["kafkagroup"]
    assert registered(Session(empty, "local[2]", "kafkagroup.zip")) == ["kafkagroup"]
    broken = Session("/bin/false")  # a response that says nothing
    assert registered(broken) == ["kafkagroup"]
