"""The errors of an application without kazoo, or with an outdated one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import kafkagroup
from kafkagroup.zookeeper import needs

ROOT = Path(kafkagroup.__file__).parents[1]


def test_an_outdated_kazoo_is_an_error_that_names_its_version(tmp_path: Path) -> None:
    """pykafka 2.8.0 pins kazoo 2.5.0, which has no SASL; the error "needs kazoo" did not help."""
    (tmp_path / "kazoo" / "protocol").mkdir(parents=True)
    for module in ("__init__", "client", "exceptions", "protocol/__init__"):
        (tmp_path / "kazoo" / f"{module}.py").touch()
    (tmp_path / "kazoo-2.5.0.dist-info").mkdir()
    (tmp_path / "kazoo-2.5.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kazoo\nVersion: 2.5.0\n", "utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import kafkagroup; kafkagroup.ZooKeeperMembership('zk:2181')"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: membership in ZooKeeper needs kazoo 2.10 or newer, and kazoo 2.5.0 is"
        " installed; pip install 'kafkagroup[zookeeper]', without pykafka, which pins kazoo 2.5.0"
    )


def test_a_missing_kazoo_is_an_error_that_names_the_extra(monkeypatch) -> None:
    def none(_name: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(needs, "version", none)
    assert needs.kazoo_needed() == (
        "membership in ZooKeeper needs kazoo: pip install 'kafkagroup[zookeeper]'"
    )
