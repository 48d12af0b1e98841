"""A Docker daemon for tests: the machine's, or else a private one, which needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["DockerUnavailable", "docker_daemon"]

_START_TIMEOUT = 30.0


class DockerUnavailable(Exception):
    """Docker cannot be used on this machine; the message has the reason."""


@contextmanager
def docker_daemon(folder: Path) -> Iterator[str]:
    """Return the address of a daemon, for `DOCKER_HOST`. A private one stores its data in `folder`.
    Raises: DockerUnavailable."""
    if shutil.which("docker") is None:
        raise DockerUnavailable("docker is not installed")
    given = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if _responses(given):
        yield given
        return
    daemon = shutil.which("dockerd")
    if daemon is None:
        raise DockerUnavailable(f"no daemon answers at {given}, and dockerd is not installed")
    host = f"unix://{folder}/docker.sock"
    # Docker needs no rules of the firewall: its proxy passes on the ports that are published.
    options = ("--iptables=false", "--ip6tables=false", "--host", host)
    places = ("--data-root", folder / "data", "--exec-root", folder / "exec")
    log = folder / "log"
    with log.open("wb") as output:
        command = [daemon, *options, *places, "--pidfile", folder / "pid"]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + _START_TIMEOUT
        while not _responses(host):
            if process.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text("utf-8").splitlines()
                raise DockerUnavailable(f"dockerd does not start: {' '.join(lines[-1:])}")
            time.sleep(0.1)
        yield host
    finally:
        process.terminate()
        process.wait()


def _responses(host: str) -> bool:
    command = ["docker", "--host", host, "version", "--format", "{{.Server.Version}}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except subprocess.TimeoutExpired:
        return False
