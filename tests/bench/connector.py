"""The jars of Spark's own connector, `format("kafka")`, from Maven."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

from kafkagroup.testing._jars import find_java

__all__ = ["connector"]

JARS = Path(__file__).parents[2] / "build" / "bench" / "spark-jars"
CONNECTOR = (
    # The newest published version; it runs in Spark 4.3 without its dependencies.
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)


def connector() -> list[str]:
    """Return the jars of Spark's own connector. Raises: OSError, SubprocessError if the download
    fails."""
    if not JARS.exists():
        JARS.parent.mkdir(parents=True, exist_ok=True)
        # Another process may fetch them, too, and a failure leaves nothing behind.
        with TemporaryDirectory(dir=JARS.parent) as draft:
            _fetch(Path(draft))
            with suppress(OSError):  # it has been faster
                (Path(draft) / "jars").rename(JARS)
    return [str(jar) for jar in sorted(JARS.glob("*.jar"))]


def _fetch(folder: Path) -> None:
    (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false"'
        ' conf="default"/>'
        for group, name, version in CONNECTOR
    )
    (folder / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="kafkagroup" module="bench"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    arguments = ["-ivy", "ivy.xml", "-confs", "default", "-cache", "ivy"]
    command = [find_java(), "-jar", str(ivy), *arguments, "-retrieve", "jars/[artifact].[ext]"]
    subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=True)
