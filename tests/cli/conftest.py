"""Commands run without the user's configuration."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a missing file for profiles."""
    for name in [name for name in os.environ if name.startswith("KAFKAGROUP_")]:
        if name != "KAFKAGROUP_PURE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "kafkagroup.toml"
