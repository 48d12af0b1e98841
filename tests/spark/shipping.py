"""The package as a cluster of Spark gets it: as an archive, or as a wheel in its Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import kafkagroup

__all__ = ["packed", "with_wheel", "without_package"]

_PACKAGE = Path(kafkagroup.__file__).parent


def packed(folder: Path) -> Path:
    """Return an archive of the package, which is not compiled."""
    with ZipFile(folder / "shipped.zip", "w") as archive:
        for file in _PACKAGE.rglob("*.py"):
            archive.write(file, Path("kafkagroup") / file.relative_to(_PACKAGE))
    return folder / "shipped.zip"


def without_package(folder: Path) -> Path:
    """Return the Python of an environment with the packages of this one, except this package."""
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    # Packages are found in a folder that a .pth file names, but its own .pth files are not read: so
    # a checkout that is installed there is not found.
    others = _site_packages(environment) / "others.pth"
    others.write_text(sysconfig.get_path("purelib"), "utf-8")
    return environment / "bin" / "python"


def with_wheel(folder: Path) -> Path:
    """Return the Python of an environment with a wheel of the package, which is not compiled, and
    with the other packages of this one."""
    tree = folder / "tree"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "_in_place.txt")
    shutil.copytree(_PACKAGE, tree / "kafkagroup", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(_PACKAGE.parent / name, tree)
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]
    subprocess.run(
        [*command, "--wheel", str(tree)],
        env={**os.environ, "KAFKAGROUP_PURE": "1"},
        capture_output=True,
        check=True,
    )
    (wheel,) = (tree / "dist").glob("*.whl")
    python = without_package(folder)
    with ZipFile(wheel) as archive:
        archive.extractall(_site_packages(python.parent.parent))
    return python


def _site_packages(environment: Path) -> Path:
    (packages,) = environment.glob("lib/python*/site-packages")
    return packages
