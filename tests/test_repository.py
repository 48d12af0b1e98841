"""What surrounds the code: workflows, pins, classifiers, and the promises of SECURITY.md."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="an sdist has no workflows")


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").split()
    return {re.sub("[._]", "-", name.lower()): pin for name, pin in (x.split("==") for x in lines)}


def steps(workflow: str) -> list[dict[str, Any]]:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / workflow).read_text("utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_every_action_is_pinned_by_the_hash_of_a_commit_with_its_version_behind() -> None:
    """A tag can be moved to another commit, which would then run with the right to publish."""
    used = [
        line.split("uses:")[1].strip()
        for path in WORKFLOWS
        for line in path.read_text("utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(used) > 10
    pinned = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [action for action in used if not pinned.fullmatch(action)] == []
    by_name: dict[str, set[str]] = {}
    for action in used:
        by_name.setdefault(action.partition("@")[0], set()).add(action)
    assert [pins for pins in by_name.values() if len(pins) > 1] == []


def test_dependabot_raises_actions_and_python_packages() -> None:
    config = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text("utf-8"))
    updates = {update["package-ecosystem"]: update for update in config["updates"]}
    assert set(updates) == {"github-actions", "pip"}
    assert {update["directory"] for update in updates.values()} == {"/"}
    # It never raises what pyproject.toml promises to users without need.
    assert updates["pip"]["versioning-strategy"] == "increase-if-necessary"


def test_a_release_is_built_with_pinned_tools() -> None:
    needs = {re.split("[<>=]", need)[0].lower() for need in PYPROJECT["build-system"]["requires"]}
    assert needs == {"setuptools", "cython"}
    assert needs | {"build", "twine"} <= set(constraints())
    (build,) = (s for s in steps("release.yml") if s.get("run") == "python -m build")
    assert build["env"]["PIP_CONSTRAINT"] == "${{ github.workspace }}/constraints.txt"
    wheels = PYPROJECT["tool"]["cibuildwheel"]
    assert wheels["dependency-versions"] == {"file": "constraints.txt"}
    assert wheels["environment"] == {"PIP_CONSTRAINT": "constraints.txt"}
    installs = [line for s in steps("release.yml") for line in s.get("run", "").splitlines()]
    installs = [line for line in installs if "pip install" in line]
    assert installs
    assert all("--constraint constraints.txt" in line for line in installs)


def test_classifiers_are_what_the_workflows_try() -> None:
    classifiers = set(PYPROJECT["project"]["classifiers"])
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    systems = {
        "ubuntu-": "POSIX :: Linux",
        "macos-": "MacOS",
        "windows-": "Microsoft :: Windows",
    }
    assert {c.partition("Operating System :: ")[2] for c in classifiers if "Operating" in c} == {
        name for runner, name in systems.items() if runner in text
    }
    tried = set(re.findall(r'"(3\.\d+t?)"', text))
    versions = {c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)}
    assert versions == {version for version in tried if not version.endswith("t")}
    assert any(version.endswith("t") for version in tried)
    # Not "Stable": docs/embedding.md says what has not run without the GIL.
    assert "Programming Language :: Python :: Free Threading :: 2 - Beta" in classifiers
    assert "Tests with real brokers have not run on it." in (
        ROOT / "docs" / "embedding.md"
    ).read_text("utf-8")


def test_security_says_which_versions_get_fixes() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    table = text.partition("## Supported versions\n")[2].partition("\n## ")[0]
    assert "| version | gets security fixes |" in table
    released = re.findall(
        r"^## (\d\S*) - ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert ("has not been made yet" in table) is (not released)
