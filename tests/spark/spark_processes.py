"""Processes of Spark beside the tests: drivers, servers, a standalone cluster.

Each is started in a session of its own, as setsid(2) does, which all its children share: daemons of
Python leave its process group, but not its session. At the end all processes of the session are
killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import attrs
import pyspark

__all__ = [
    "DRIVER_SETTINGS",
    "HOME",
    "Cluster",
    "ProcessSession",
    "in_session",
    "standalone_cluster",
]

HOME = Path(pyspark.__file__).parent
"""SPARK_HOME."""

DRIVER_SETTINGS = (
    "spark.driver.bindAddress=127.0.0.1",
    "spark.driver.host=127.0.0.1",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
    "spark.ui.enabled=false",
)
"""Settings of each driver: on this machine only, and soon there."""

_START_TIMEOUT = 120.0


class ProcessSession:
    """A process and all that it starts; as a context manager, it kills them at the end."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                # Executors put their folders into the working directory.
                cwd=log.parent,
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONFAULTHANDLER": "1",
                    **(environment or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> ProcessSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A process that is killed may have started another one before.
        while pids := in_session(self.process.pid):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.poll()
            time.sleep(0.01)
        self.process.wait()

    def output(self) -> str:
        """Return the end of what the processes have printed."""
        return self._log.read_text("utf-8", errors="replace")[-3000:]

    def abort_pythons(self) -> str:
        """End the Python processes; return what each of their threads did."""
        began_at = self._log.stat().st_size
        for pid in in_session(self.process.pid):
            if b"python" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                os.kill(pid, signal.SIGABRT)
        time.sleep(5.0)  # the JVM copies their lines
        return self._log.read_bytes()[began_at:].decode(errors="replace")

    def wait_for(self, pattern: str) -> str:
        """Wait until a line has the pattern; return its first group, or all of it."""
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            exited = self.process.poll() is not None
            match = re.search(pattern, self._log.read_text("utf-8", errors="replace"))
            if match is not None:
                return match[match.lastindex or 0]
            assert not exited, f"the process has ended: {self.output()}"
            assert time.monotonic() < deadline, f"no {pattern!r} in: {self.output()}"
            time.sleep(0.1)


@attrs.frozen
class Cluster:
    """A cluster of Spark."""

    master: str
    """Its URL."""
    workers: Sequence[ProcessSession] = ()
    """The processes of the workers, which start the executors; none if they are in the driver."""


def in_session(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            state, _, _, sid, *_ = (folder / "stat").read_text("utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(sid) == session and state != "Z":
            found.append(int(folder.name))
    return found


@contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Run a standalone cluster, with one core and 512 MB in each worker."""
    folder.mkdir()
    environment = {
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    }
    run = (str(HOME / "bin" / "spark-class"), "org.apache.spark.deploy")
    ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        command = [run[0], f"{run[1]}.master.Master", *ports]
        master = stack.enter_context(ProcessSession(command, folder / "master.log", environment))
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        started = []
        for number in range(workers):
            command = [run[0], f"{run[1]}.worker.Worker", *ports, "--cores", "1"]
            command += ["--memory", "512m", "--work-dir", str(folder / f"work-{number}"), url]
            log = folder / f"worker-{number}.log"
            started.append(stack.enter_context(ProcessSession(command, log, environment)))
        for worker in started:
            worker.wait_for("Successfully registered with master")
        yield Cluster(url, started)
