"""Audit the pinned packages, including extras and tools, for known vulnerabilities.

    python tests/audit.py [constraints.txt]

pip-audit exits with 0 if it has looked nothing up, and with 1 both for a vulnerability and for an
unreachable service. So only its report counts here: packages unknown to every service are listed,
and the exit code is 1 only for known vulnerabilities.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"

SERVICES = ("pypi", "osv")
"""Asked in turn, the second one for what the first did not know."""

TIMEOUT = 30.0
"""Seconds for all responses of one service. A check must not hang where there is no network."""

Ask = Callable[[str, Mapping[str, str]], dict[str, Any]]
"""Service, packages with their versions -> pip-audit's report. Raises: Unanswered."""


class Unanswered(Exception):
    """A service returned no report; the message has the reason."""


@attrs.frozen
class Audit:
    """The known facts about some packages."""

    packages: Mapping[str, str]
    """Name -> version."""
    vulnerable: Mapping[str, tuple[str, ...]]
    """Name -> its known vulnerabilities, one line each."""
    skipped: Mapping[str, str]
    """Name -> why it was not audited."""

    def lines(self) -> list[str]:
        """Return the audit as text."""
        text = [
            f"VULNERABLE: {name} {self.packages[name]}: {line}"
            for name, lines in self.vulnerable.items()
            for line in lines
        ]
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            by_reason.setdefault(reason, []).append(f"{name} {self.packages[name]}")
        for reason, names in by_reason.items():
            text.append(
                f"NOT AUDITED: {len(names)} of {len(self.packages)} packages: {reason}:"
                f" {', '.join(names)}"
            )
        known = len(self.packages) - len(self.skipped)
        text.append(f"{known} packages audited, {len(self.vulnerable)} of them vulnerable")
        return text


def pinned(text: str) -> dict[str, str]:
    """Return name -> version of lines such as "anyio==4.16.0". Raises: ValueError for any other
    line."""
    found = {}
    for line in text.splitlines():
        requirement = line.partition("#")[0].partition(";")[0].strip()
        if requirement:
            name, pin, version = requirement.partition("==")
            if not pin:
                raise ValueError(f"{line!r} pins no version")
            found[name.strip()] = version.strip()
    return found


def audit(packages: Mapping[str, str], ask: Ask) -> Audit:
    """Return what the services know of these packages."""
    vulnerable: dict[str, tuple[str, ...]] = {}
    skipped = dict.fromkeys(packages, "")
    for service in SERVICES:
        if not skipped:
            break
        try:
            report = ask(service, {name: packages[name] for name in skipped})
        except Unanswered as reason:
            skipped = {
                name: _joined(before, f"{service}: {reason}") for name, before in skipped.items()
            }
            continue
        entries = {_normal(entry["name"]): entry for entry in report["dependencies"]}
        for name in tuple(skipped):
            entry = entries.get(_normal(name))
            if entry is None or "vulns" not in entry:
                skipped[name] = _joined(skipped[name], f"{service}: not known there")
                continue
            del skipped[name]
            if entry["vulns"]:
                vulnerable[name] = tuple(map(_vulnerability, entry["vulns"]))
    return Audit(packages, vulnerable, skipped)


def _joined(before: str, reason: str) -> str:
    return f"{before}; {reason}" if before else reason


def _normal(name: str) -> str:
    """Normalize a name as package indexes do (PEP 503)."""
    return name.lower().replace("_", "-").replace(".", "-")


def _vulnerability(entry: Mapping[str, Any]) -> str:
    fixed = ", ".join(entry["fix_versions"]) or "no version"
    return f"{', '.join((entry['id'], *entry['aliases']))}, fixed in {fixed}"


def pip_audit(service: str, packages: Mapping[str, str]) -> dict[str, Any]:
    """Run pip-audit; an `Ask`."""
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", service]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    # Nothing is resolved or installed for this: the versions are all there.
    command += ["--no-deps", "--disable-pip", "--requirement"]
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "pinned.txt"
        listed.write_text("".join(f"{name}=={version}\n" for name, version in packages.items()))
        try:
            done = subprocess.run(
                [*command, str(listed)], capture_output=True, text=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise Unanswered(f"no answer within {TIMEOUT:g} s") from None
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        errors = done.stderr.strip().splitlines() or ["no report"]
        raise Unanswered(errors[-1][:300]) from None
    return report


def main(arguments: list[str], ask: Ask = pip_audit) -> int:
    """Return the exit code: 1 for a known vulnerability."""
    path = Path(arguments[0]) if arguments else CONSTRAINTS
    found = audit(pinned(path.read_text()), ask)
    print(*found.lines(), sep="\n")
    return 1 if found.vulnerable else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
