"""A headless Chromium without a network, which renders pages as readers see them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import attrs
import pytest

__all__ = ["Seen", "open_page"]


@attrs.frozen
class Seen:
    """The rendered state of a page."""

    dom: str
    """Standard output: the page as it is in the end, with `--dump-dom`."""
    console: tuple[str, ...]
    """What the page, or the browser about it, has to complain of."""


def open_page(address: str, *arguments: str, profile: Path) -> Seen:
    """Open a page; only names of this machine resolve. Skip the test without Chromium."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if browser := shutil.which(name):
            break
    else:
        pytest.skip("NOT TESTED, pages in a browser: no chromium here")
    fixed = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={profile}",
    )
    command = [browser, *fixed, *arguments, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return Seen(done.stdout, tuple(s for s in done.stderr.splitlines() if ":CONSOLE" in s))
