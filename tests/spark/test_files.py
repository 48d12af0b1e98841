"""Folders that take another's place, as readers see it."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup.spark import files


def write(folder: Path, version: int) -> None:
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}-{version}").touch()


def test_there_is_always_a_folder(spark: Any, tmp_path: Path) -> None:
    folder, draft = tmp_path / "table", tmp_path / ".table.draft"
    write(folder, 0)
    missing: list[FileNotFoundError] = []
    is_done = threading.Event()

    def look_repeatedly() -> None:
        while not is_done.is_set():
            try:
                folder.stat()
            except FileNotFoundError as error:
                missing.append(error)

    reader = threading.Thread(target=look_repeatedly)
    reader.start()
    for version in range(1, 31):
        write(draft, version)
        files.replace_folder(spark, str(draft), str(folder))
    is_done.set()
    reader.join()
    assert missing == []
    assert set(os.listdir(folder)) == {"a-30", "b-30"}
    assert set(os.listdir(tmp_path)) == {"table", ".table.old"}


def test_a_reader_may_list_the_replaced_folder(spark: Any, tmp_path: Path) -> None:
    folder, draft = tmp_path / "table", tmp_path / ".table.draft"
    write(folder, 0)
    write(draft, 1)
    reader = os.open(folder, os.O_RDONLY)
    try:
        files.replace_folder(spark, str(draft), str(folder))
        assert set(os.listdir(reader)) == {"a-0", "b-0"}
        assert set(os.listdir(folder)) == {"a-1", "b-1"}
    finally:
        os.close(reader)


def test_windows_has_no_exchange(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There `CDLL` does not accept None."""

    def load_as_on_windows(name: str, **_: object) -> object:
        return "/" in name

    monkeypatch.setattr(ctypes, "CDLL", load_as_on_windows)
    monkeypatch.setattr(sys, "platform", "win32")
    assert not files._exchange(str(tmp_path), str(tmp_path))


def test_without_an_exchange_the_folder_is_renamed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    folder, draft = tmp_path / "table", tmp_path / ".table.draft"
    for version in range(3):
        write(draft, version)
        files.replace_folder(spark, str(draft), str(folder))
        assert set(os.listdir(folder)) == {f"a-{version}", f"b-{version}"}
    assert set(os.listdir(tmp_path)) == {"table", ".table.old"}
