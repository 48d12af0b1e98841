"""The notice that kafkagroup is not compiled: in the log, in `health` and in `doctor`."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kafkagroup
from kafkagroup import Admin, Consumer, Health, HealthFinding, HealthProblem
from kafkagroup.admin.doctor import Finding, Status, examine
from kafkagroup.runtime.client import uncompiled
from kafkagroup.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.anyio

LOGGER = "kafkagroup.runtime.client.uncompiled"
TEXT = "kafkagroup is not compiled: records take up to 6 times as much CPU"
INSTALL = (
    "install a wheel for this platform; or install a C compiler and Python's headers (on Debian,"
    " gcc and python3-dev), then kafkagroup again, with pip's options --force-reinstall and"
    " --no-cache-dir"
)
UNSET = "KAFKAGROUP_PURE is set in the environment; unset it"


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the start of a process: no client has logged anything."""
    monkeypatch.setattr(uncompiled, "_was_logged", False)


@pytest.fixture(params=[False, True], ids=["no compiler", "asked for"])
def advice(request: Any, monkeypatch: pytest.MonkeyPatch, new_process: None) -> str:
    """Return the advice of a process that is not compiled."""
    monkeypatch.setattr(uncompiled, "is_compiled", lambda: False)
    if request.param:
        monkeypatch.setenv("KAFKAGROUP_PURE", "1")
        return UNSET
    monkeypatch.delenv("KAFKAGROUP_PURE", raising=False)
    return INSTALL


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, new_process: None) -> None:
    monkeypatch.setattr(uncompiled, "is_compiled", lambda: True)


async def start_three_clients(network: Any) -> Health:
    """Start a consumer, an admin client and a consumer; return the health of the last one."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        options: Any = {"bootstrap_servers": "kafka-1"}
        async with (
            Consumer("t", group_id="g", **options),
            Admin(**options),
            Consumer("t", group_id="h", **options) as last,
        ):
            await last.wait_assignment()
            return last.health()


async def test_the_first_client_of_a_process_logs_the_notice(
    network: Any, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a warning, unless the environment requests it."""
    with caplog.at_level(logging.INFO, LOGGER):
        await start_three_clients(network)
    level = "INFO" if advice == UNSET else "WARNING"
    logged = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == LOGGER]
    assert logged == [(level, f"{TEXT}; {advice}")]


async def test_the_health_of_an_uncompiled_client_has_a_note_and_no_problem(
    network: Any, advice: str
) -> None:
    health = await start_three_clients(network)
    assert health == Health((), notes=(f"{TEXT}; {advice}",))
    assert bool(health)
    assert str(health) == f"healthy (note: {TEXT}; {advice})"


def test_a_note_stands_behind_the_problems() -> None:
    finding = HealthFinding(problem=HealthProblem.AWAY, detail="has not polled")
    health = Health((finding,), notes=("slow",))
    assert str(health) == "away: has not polled (note: slow)"
    assert not health


async def test_doctor_begins_with_a_warning(advice: str) -> None:
    found = [finding async for finding in examine("127.0.0.1:1")]
    warning = Finding(
        check="installation", subject="", status=Status.WARNING, text=TEXT, advice=advice
    )
    assert [found[0]] == [one for one in found if one.check == "installation"] == [warning]


@pytest.mark.usefixtures("compiled")
async def test_a_compiled_client_has_no_notice(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, LOGGER):
        health = await start_three_clients(network)
    assert [r.getMessage() for r in caplog.records if r.name == LOGGER] == []
    assert (health.notes, str(health)) == ((), "healthy")
    checks = [finding.check async for finding in examine("127.0.0.1:1")]
    assert checks == ["name", "connection", "cluster"]


def test_the_page_on_operating_shows_the_notice() -> None:
    page = Path(__file__).parents[3] / "docs" / "operating.md"
    assert f"{TEXT}; {INSTALL}" in " ".join(page.read_text("utf-8").split())


PROGRAM = """
import anyio, json
from kafkagroup import Health
from kafkagroup.admin.doctor import examine
async def main():
    return [f.text async for f in examine("127.0.0.1:1") if f.check == "installation"]
print(json.dumps({"notes": Health().notes, "doctor": anyio.run(main)}))
"""


@pytest.mark.parametrize("pure", ["", "1"], ids=["compiled", "pure"])
def test_the_notice_depends_on_the_modules_in_use(pure: str) -> None:
    if not pure and not kafkagroup.__compiled__:
        pytest.skip("NOT TESTED, the notice of compiled modules: kafkagroup is not compiled here")
    environment = os.environ | {"KAFKAGROUP_PURE": pure}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, check=True
    )
    expected = {"notes": [f"{TEXT}; {UNSET}"], "doctor": [TEXT]} if pure else {}
    assert json.loads(done.stdout) == {"notes": [], "doctor": []} | expected
