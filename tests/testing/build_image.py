"""Build a Kafka image for testcontainers from this machine's files, if none can be pulled.

    python tests/testing/build_image.py kafkagroup-test:7.0.0

It contains this machine's Java, some of its commands, Kafka's jars, and the three scripts that
testcontainers' `KafkaContainer` calls (Confluent's layout). The tag must be 7.0.0 or more:
testcontainers decides by it whether the image supports KRaft. Only for Linux, and only for tests.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from kafkagroup.testing._jars import find_java, resolve_jars

COMMANDS = ("sh", "env", "hostname", "sed", "sleep", "tr")
SCRIPTS = {
    "etc/confluent/docker/bash-config": "",
    # KAFKA_NODE_ID=1 -> node.id=1. KafkaContainer appends the call that formats the storage.
    "etc/confluent/docker/configure": """
env | sed -n 's/^KAFKA_//p' | while IFS='=' read -r key value; do
  printf '%s=%s\\n' "$(printf %s "$key" | tr A-Z_ a-z.)" "$value"
done > /etc/kafka/kafka.properties
""",
    "etc/confluent/docker/launch": """
exec /java/bin/java -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp '/jars/*' \\
  -Dorg.slf4j.simpleLogger.defaultLogLevel=info kafka.Kafka /etc/kafka/kafka.properties
""",
    "usr/bin/kafka-storage": """
exec /java/bin/java -XX:TieredStopAtLevel=1 -cp '/jars/*' \\
  -Dorg.slf4j.simpleLogger.defaultLogLevel=warn kafka.tools.StorageTool "$@"
""",
}


def libraries(*binaries: Path) -> set[Path]:
    """Return the shared objects that `binaries` load, including the loader."""
    found = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=True).stdout
    return {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+) \(0x", found, re.MULTILINE)}


def build(name: str) -> None:
    java = Path(find_java()).resolve()
    home = java.parent.parent
    commands = [Path(shutil.which(command) or command) for command in COMMANDS]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        shutil.copytree(resolve_jars("4.3.1", str(java)), root / "jars")
        for part in ("bin", "conf", "lib"):
            # Distributions link parts of a Java home to elsewhere, sometimes to nothing.
            shutil.copytree(home / part, root / "java" / part, ignore_dangling_symlinks=True)
        for library in libraries(java, *commands, *home.glob("lib/**/*.so")):
            if not library.is_relative_to(home):
                copy(library, root / library.relative_to("/"))
        for command in commands:
            copy(command, root / "usr/bin" / command.name)
        for directory in ("bin", "tmp", "etc/kafka"):
            (root / directory).mkdir(parents=True)
        (root / "bin/sh").symlink_to("/usr/bin/sh")
        for path, text in SCRIPTS.items():
            script = root / path
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(f"#!/bin/sh\n{text.lstrip()}")
            script.chmod(0o755)
        archive = Path(scratch, "root.tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(root, ".")
        command = ["docker", "import", "--change", "ENV PATH=/usr/bin:/bin", str(archive), name]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


if __name__ == "__main__":
    build(sys.argv[1])
