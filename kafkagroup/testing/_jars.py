"""The jars of a release of Apache Kafka or ZooKeeper: found, or fetched once, checked each time.

Only here do files come from outside. Nothing runs before its SHA-256 is the one in the list that is
shipped beside this file (`kafka-<version>.sha256` and its like, in the format of `sha256sum -c`),
and a cache folder is either whole or not there. The one exception is the folder that the variable
`KAFKAGROUP_KAFKA_JARS` or `KAFKAGROUP_ZOOKEEPER_JARS` names: it is its owner's, used as it is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kafkagroup.errors import KafkaGroupError
from kafkagroup.testing._releases import JarSet, find_release

__all__ = [
    "DOWNLOAD_TIMEOUT",
    "LocalKafkaError",
    "LocalKafkaUnavailable",
    "find_java",
    "resolve_jars",
    "tail",
    "verify_jars",
]

DOWNLOAD_TIMEOUT = 120.0
"""Seconds that fetching 46 MB of jars into a cold cache may take, all ways of fetching together."""


class LocalKafkaError(KafkaGroupError):
    """A local Kafka failed: a JVM ended or never answered. Holds the end of what it printed."""


class LocalKafkaUnavailable(LocalKafkaError):
    """This machine cannot run a local Kafka: no Java, or no jars. Says what would help."""


def find_java() -> str:
    """The `java` command, absolute: of `JAVA_HOME` if that is set, else on `PATH`.

    Raises: LocalKafkaUnavailable if there is none. Its version is Kafka's to judge.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java").absolute()
        if not os.access(java, os.X_OK):
            raise LocalKafkaUnavailable(f"JAVA_HOME is {home}, which holds no bin/java")
        return str(java)
    on_path = shutil.which("java")
    if on_path is None:
        raise LocalKafkaUnavailable("no Java: JAVA_HOME is not set and no java command is on PATH")
    return str(Path(on_path).absolute())


def resolve_jars(version: str, java: str, *, timeout: float = DOWNLOAD_TIMEOUT) -> Path:
    """The folder, absolute, whose jars are the class path of Kafka `version`.

    In this order: the folder in `KAFKAGROUP_KAFKA_JARS`; the cache (`kafkagroup/kafka-<version>`
    under `XDG_CACHE_HOME`, else `~/.cache`); fetched into the cache by the `mvn` command; fetched
    into it by the Ivy jar that PySpark carries, run with `java`. `timeout` seconds bound fetching.

    Raises: ConfigurationError for a version that does not run here; LocalKafkaUnavailable when a
    checksum differs, or when nothing here can fetch the jars (it then says why of each).
    """
    return resolve(find_release(version).jars, java, timeout=timeout)


def resolve(jars: JarSet, java: str, *, timeout: float = DOWNLOAD_TIMEOUT) -> Path:
    """The same for any set of jars, by its own name and variable."""
    given = os.environ.get(jars.variable)
    if given:
        if not any(Path(given).glob(jars.mark)):
            raise LocalKafkaUnavailable(f"{jars.variable} is {given}, which holds no {jars.mark}")
        return Path(given).absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    folder = cache / "kafkagroup" / jars.name
    if not folder.exists():
        _fill(folder, jars, java, timeout)
    try:
        _verify(folder, jars)
    except LocalKafkaUnavailable as error:
        raise LocalKafkaUnavailable(
            f"{error}; delete {folder} to have them fetched again"
        ) from None
    return folder


def verify_jars(folder: Path, version: str) -> None:
    """Compare every jar in `folder` with the checksums of Kafka `version`.

    Raises: LocalKafkaUnavailable naming the jars that are missing, differ, or do not belong.
    """
    _verify(folder, find_release(version).jars)


def _verify(folder: Path, jars: JarSet) -> None:
    listed = {}
    checksums = Path(__file__).with_name(f"{jars.name}.sha256")
    for line in checksums.read_text("ascii").splitlines():
        digest, name = line.split()
        listed[name] = digest
    found = {jar.name: _sha256(jar) for jar in sorted(folder.glob("*.jar"))}
    wrong = [f"{name} is missing" for name in listed.keys() - found.keys()]
    wrong += [f"{name} does not belong" for name in found.keys() - listed.keys()]
    wrong += [
        f"{name} has another checksum"
        for name in listed.keys() & found.keys()
        if listed[name] != found[name]
    ]
    if wrong:
        raise LocalKafkaUnavailable(
            f"the jars are not those of {jars.product} {jars.version}: {', '.join(sorted(wrong))}"
        )


def tail(path: Path) -> str:
    """The end of a text file, at most 4,000 characters; of a missing one, a word on that."""
    try:
        text = path.read_text("utf-8", errors="replace").strip()
    except FileNotFoundError:
        text = ""
    return text[-4000:] or "(it printed nothing)"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fill(folder: Path, jars: JarSet, java: str, timeout: float) -> None:
    """Fetch the jars beside `folder`, check them, and rename them into place at one stroke."""
    deadline = time.monotonic() + timeout
    folder.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for fetch in (_fetch_with_maven, _fetch_with_ivy):
        # In the cache's own file system: a rename across two would not be atomic.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
            fetched = Path(scratch, "jars")
            try:
                fetch(jars, java, Path(scratch), deadline)
                _verify(fetched, jars)
            except LocalKafkaUnavailable as error:
                reasons.append(str(error))
                continue
            try:
                fetched.rename(folder)
            except OSError:
                # Another process was faster. A folder that is not empty is never replaced.
                if not folder.is_dir():
                    raise
            return
    raise LocalKafkaUnavailable(
        f"{jars.product} {jars.version} is not in {folder}, and cannot be fetched:"
        f" {'; '.join(reasons)}. "
        f"{jars.variable} may name a folder with its jars"
    )


def _fetch_with_maven(jars: JarSet, java: str, scratch: Path, deadline: float) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise LocalKafkaUnavailable("no mvn command is on PATH")
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artefact}</artifactId>"
        f"<version>{number}</version></dependency>"
        for group, artefact, number in jars.artefacts
    )
    Path(scratch, "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>kafkagroup</groupId>"
        "<artifactId>local-kafka</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>",
        "utf-8",
    )
    command = [maven, "--batch-mode", "--quiet", "dependency:copy-dependencies"]
    if jars.closed:
        command.append("-DexcludeTransitive=true")
    _run([*command, "-DincludeScope=runtime", "-DoutputDirectory=jars"], scratch, deadline)


def _fetch_with_ivy(jars: JarSet, java: str, scratch: Path, deadline: float) -> None:
    # Found, not imported: PySpark's import takes a second and may itself want Java.
    spec = importlib.util.find_spec("pyspark")
    places = [Path(place, "jars") for place in (spec and spec.submodule_search_locations) or ()]
    ivy = next((jar for place in places for jar in sorted(place.glob("ivy-*.jar"))), None)
    if ivy is None:
        raise LocalKafkaUnavailable("PySpark, whose Ivy jar would do, is not installed")
    also = 'transitive="false"' if jars.closed else ""
    dependencies = "".join(
        f'<dependency org="{group}" name="{artefact}" rev="{number}" {also} conf="default"/>'
        for group, artefact, number in jars.artefacts
    )
    Path(scratch, "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="kafkagroup" module="local-kafka"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>",
        "utf-8",
    )
    command = [java, "-jar", str(ivy), "-ivy", "ivy.xml", "-confs", "default", "-cache", "ivy"]
    _run([*command, "-retrieve", "jars/[artifact]-[revision].[ext]"], scratch, deadline)


def _run(command: Sequence[str], scratch: Path, deadline: float) -> None:
    """Run `command` in `scratch`. Raises: LocalKafkaUnavailable with the end of its output."""
    name = Path(command[0]).name
    output = scratch / f"{name}.log"
    # To a file: a pipe that a grandchild holds open would outlive the timeout.
    with output.open("wb") as log:
        try:
            done = subprocess.run(
                command,
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=max(0.0, deadline - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LocalKafkaUnavailable(
                f"{name} was not done in the time left for fetching"
            ) from None
    if done.returncode != 0:
        raise LocalKafkaUnavailable(f"{name} failed ({done.returncode}): {tail(output)}")
