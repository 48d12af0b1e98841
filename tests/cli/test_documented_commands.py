"""What the README says to type can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from kafkagroup.cli._app import app
from kafkagroup.cli._profiles import load_profile

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
TYPED = re.findall(r"^(?:\$ )?kafkagroup (.*?) *(?:#.*)?$", README, re.MULTILINE)
COMMANDS = [line for line in TYPED if not line.startswith("demo ")]
"""The demo's title is printed, not typed."""


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_readme(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "billing.json").touch()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = shlex.split(line)
    command: click.Command = app
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    with command.make_context(command.name, words):
        pass


def test_every_group_command_is_documented() -> None:
    assert {line.split()[0] for line in COMMANDS} >= {"describe", "lag", "watch", "reset-offsets"}


def test_the_profiles_of_the_readme(nothing_configured: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    nothing_configured.write_text(text)
    assert [said.name for said in load_profile(None, "production")[1]][-1] == "group.id"
