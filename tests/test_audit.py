"""Packages that are not audited are named, and only a known vulnerability fails."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from audit import CONSTRAINTS, Audit, Unanswered, audit, main, pinned, pip_audit

PACKAGES = {"anyio": "4.0", "Some_Name": "1.2"}
GOOD = {"name": "anyio", "version": "4.0", "vulns": []}
BAD = {
    "name": "some-name",
    "version": "1.2",
    "vulns": [
        {"id": "PYSEC-1", "fix_versions": ["1.3"], "aliases": ["CVE-1"], "description": "..."},
        {"id": "PYSEC-2", "fix_versions": [], "aliases": [], "description": "..."},
    ],
}
SKIPPED = {"name": "some-name", "skip_reason": "Dependency not found on PyPI"}


class Services:
    """Reports by service; None for an unreachable service."""

    def __init__(self, **reports: list[dict[str, Any]] | None) -> None:
        self.reports = reports
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(self, service: str, packages: Mapping[str, str]) -> dict[str, Any]:
        self.asked.append((service, list(packages)))
        report = self.reports[service]
        if report is None:
            raise Unanswered("no route")
        return {"dependencies": report}


def test_no_vulnerability_passes() -> None:
    services = Services(pypi=[GOOD, {**BAD, "vulns": []}])
    found = audit(PACKAGES, services)
    assert found == Audit(PACKAGES, {}, {})
    assert found.lines() == ["2 packages audited, 0 of them vulnerable"]
    assert services.asked == [("pypi", ["anyio", "Some_Name"])]


def test_a_vulnerability_is_reported_with_its_fix() -> None:
    found = audit(PACKAGES, Services(pypi=[GOOD, BAD]))
    assert found.lines() == [
        "VULNERABLE: Some_Name 1.2: PYSEC-1, CVE-1, fixed in 1.3",
        "VULNERABLE: Some_Name 1.2: PYSEC-2, fixed in no version",
        "2 packages audited, 1 of them vulnerable",
    ]


def test_packages_unknown_to_one_service_are_looked_up_in_the_other() -> None:
    services = Services(pypi=[GOOD, SKIPPED], osv=[BAD])
    assert list(audit(PACKAGES, services).vulnerable) == ["Some_Name"]
    assert services.asked[1] == ("osv", ["Some_Name"])


def test_packages_unknown_to_both_services_are_named() -> None:
    found = audit(PACKAGES, Services(pypi=[GOOD, SKIPPED], osv=None))
    assert found.lines() == [
        "NOT AUDITED: 1 of 2 packages: pypi: not known there; osv: no route: Some_Name 1.2",
        "1 packages audited, 0 of them vulnerable",
    ]


def test_a_package_missing_from_a_report_is_not_audited() -> None:
    assert list(audit(PACKAGES, Services(pypi=[GOOD], osv=[])).skipped) == ["Some_Name"]


@pytest.mark.parametrize(
    ("services", "code"),
    [
        (Services(pypi=[GOOD, BAD]), 1),
        (Services(pypi=[GOOD, SKIPPED], osv=[SKIPPED]), 0),
        (Services(pypi=None, osv=None), 0),
    ],
)
def test_only_a_vulnerability_fails(
    services: Services, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.txt").write_text("anyio==4.0  # loop\n\nSome_Name==1.2 ; python_version<'4'\n")
    assert main([str(tmp_path / "c.txt")], services) == code
    assert ("NOT AUDITED" in capsys.readouterr().out) == (code == 0)


def test_the_constraints_pin_every_package() -> None:
    assert pinned(CONSTRAINTS.read_text())["anyio"]
    with pytest.raises(ValueError, match="'anyio>=4' pins no version"):
        pinned("anyio>=4")


@pytest.mark.parametrize(
    ("output", "errors", "reason"),
    [
        ("", "Traceback\nConnectionError: no such name", "ConnectionError: no such name"),
        ("", "", "no report"),
        ("Found 1", "pip_audit: bad argument", "pip_audit: bad argument"),
    ],
)
def test_a_run_without_a_report_is_no_audit(
    output: str, errors: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip-audit exits with 1 then, as for a vulnerability."""
    done = subprocess.CompletedProcess([], 1, output, errors)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(Unanswered, match=f"^{reason}$"):
        pip_audit("pypi", PACKAGES)


def test_a_service_that_hangs_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 30)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(Unanswered, match=r"^no answer within 30 s$"):
        pip_audit("pypi", PACKAGES)
