"""Find the jars of a release of Apache Kafka or ZooKeeper, or download them once, and verify them.

Only this module brings in files from outside. No jar runs before its SHA-256 matches the list that
is shipped with this file (`kafka-<version>.sha256` and the like, in the format of `sha256sum -c`),
and a cache folder is either complete or absent. Not verified are the folder that an environment
variable names, such as `KAFKAGROUP_KAFKA_JARS`, and the Ivy jar of an installed PySpark.
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
"""Seconds for downloading 46 MB of jars into an empty cache, over all attempts."""


class LocalKafkaError(KafkaGroupError):
    """A local server failed: a JVM exited or did not answer. Holds the end of its output."""


class LocalKafkaUnavailable(LocalKafkaError):
    """This machine cannot run a local Kafka: no Java, or no jars. Says what to install or set."""


def find_java() -> str:
    """Return the absolute path of `java`: in `JAVA_HOME` if that is set, else on `PATH`.

    Does not check Java's version: Kafka does. Raises: LocalKafkaUnavailable without a `java`.
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
    """Return the absolute path of the folder whose jars are the class path of Kafka `version`.

    In this order: the folder in `KAFKAGROUP_KAFKA_JARS`; the cache (`kafkagroup/kafka-<version>`
    under `XDG_CACHE_HOME`, else `~/.cache`); a download into the cache with `mvn`; a download with
    the Ivy jar that PySpark includes, run with `java`. Downloads take `timeout` seconds at most.

    Raises: ConfigurationError for an unsupported version; LocalKafkaUnavailable if the folder in
    `KAFKAGROUP_KAFKA_JARS` lacks Kafka's jar, if a checksum differs, or if the jars cannot be
    downloaded (with the reason for each attempt).
    """
    return resolve(find_release(version).jars, java, timeout=timeout)


def resolve(jars: JarSet, java: str, *, timeout: float = DOWNLOAD_TIMEOUT) -> Path:
    """Return the folder of any set of jars, found or filled as `resolve_jars` does for Kafka's."""
    given = os.environ.get(jars.variable)
    if given:
        if not any(Path(given).glob(jars.required_jar)):
            raise LocalKafkaUnavailable(
                f"{jars.variable} is {given}, which holds no {jars.required_jar}"
            )
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
    """Check that `folder` has exactly the jars of the list that is shipped for `jars`. Raises:
    LocalKafkaUnavailable."""
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
    """Return the last 4,000 characters of a text file, or a note that it is empty or missing."""
    try:
        text = path.read_text("utf-8", errors="replace").strip()
    except FileNotFoundError:
        text = ""
    return text[-4000:] or "(it printed nothing)"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fill(folder: Path, jars: JarSet, java: str, timeout: float) -> None:
    """Download the jars next to `folder`, verify them, and rename them into place atomically."""
    deadline = time.monotonic() + timeout
    folder.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for fetch in (_fetch_with_maven, _fetch_with_ivy):
        # In the cache's own file system: a rename across file systems is not atomic.
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
                # Another process was faster: rename does not replace a folder that is not empty.
                if not folder.is_dir():
                    raise
            return
    raise LocalKafkaUnavailable(
        f"{jars.product} {jars.version} is not in {folder}, and cannot be fetched:"
        f" {'; '.join(reasons)}. "
        f"{jars.variable} may name a folder with its jars"
    )


def _fetch_with_maven(jars: JarSet, java: str, scratch: Path, deadline: float) -> None:
    # `java` is only for `_fetch_with_ivy`: mvn finds Java itself.
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
    if jars.is_complete:
        command.append("-DexcludeTransitive=true")
    _run([*command, "-DincludeScope=runtime", "-DoutputDirectory=jars"], scratch, deadline)


def _fetch_with_ivy(jars: JarSet, java: str, scratch: Path, deadline: float) -> None:
    # Located, not imported: importing PySpark takes a second and may require Java.
    spec = importlib.util.find_spec("pyspark")
    places = [Path(place, "jars") for place in (spec and spec.submodule_search_locations) or ()]
    ivy = next((jar for place in places for jar in sorted(place.glob("ivy-*.jar"))), None)
    if ivy is None:
        raise LocalKafkaUnavailable("PySpark, whose Ivy jar would do, is not installed")
    transitive = 'transitive="false"' if jars.is_complete else ""
    dependencies = "".join(
        f'<dependency org="{group}" name="{artefact}" rev="{number}" {transitive} conf="default"/>'
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
    """Run `command` in `scratch`. Raises: LocalKafkaUnavailable if it fails, with the end of its
    output, or if it is not done at the deadline."""
    name = Path(command[0]).name
    output = scratch / f"{name}.log"
    # To a file: a grandchild that holds a pipe open would make this wait past the timeout.
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
