"""`kafkagroup pipeline`: the history of a cluster's groups as tables, and as a page."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import click

from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._suggestions import SuggestingGroup
from kafkagroup.errors import ConfigurationError, KafkaGroupError

__all__ = ["cause_of", "command", "session"]


@click.group(
    "pipeline",
    cls=SuggestingGroup,
    short_help="Compute tables and a report of the health of groups.",
)
def command() -> None:
    """Compute tables of the groups in __consumer_offsets, with PySpark in this process.

    Needs Java 17 and the extra `pipeline`. For your own Spark, see `kafkagroup.spark.pipeline`.
    """


def _table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the tables, and those of the report."""

    @click.option(
        "--out", metavar="DIR", required=True, help="The folder of the tables: a path or a URL."
    )
    @click.option(
        "--format", "form", default="parquet", show_default=True, help="The format of the tables."
    )
    @click.option(
        "--namespace",
        metavar="NAME",
        help="The namespace of the tables in one of Spark's catalogs, such as lake.kafka.",
    )
    @click.option(
        "--group",
        "groups",
        metavar="PATTERN",
        multiple=True,
        help="Show only groups with such an id in the report, as orders-*; repeatable.",
    )
    @click.option(
        "--exclude",
        metavar="PATTERN",
        multiple=True,
        help="Leave groups with such an id out of the report, as console-consumer-*; repeatable.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print the path of the report as JSON.")
    # The options above need a function to decorate.
    @functools.wraps(command)
    def with_tables(*args: Any, **options: Any) -> Any:
        return command(*args, **options)

    return with_tables


@command.command("run", short_help="Read new records, and write the tables and the report.")
@_table_options
@click.option(
    "--every",
    type=click.FloatRange(1.0),
    metavar="SECONDS",
    help="Repeat until interrupted, also after a run that failed. Default: run once.",
)
@click.option(
    "--retention",
    type=click.FloatRange(0.0, min_open=True),
    metavar="DAYS",
    help="Remove older events and samples that the health of groups does not need. Default: keep"
    " all.",
)
@click.option(
    "--loads",
    type=(str, click.Path(dir_okay=False, writable=True)),
    metavar="GROUP FILE",
    multiple=True,
    help="Write the group's loads to a file that a LoadsFile of its members reads.",
)
@click.option(
    "--report/--no-report", "with_report", default=True, help="Whether to write report.html."
)
@click.option(
    "--allowed",
    type=click.IntRange(0),
    metavar="RECORDS",
    default=0,
    show_default=True,
    help="A lag of a partition up to this counts as none in its status.",
)
@connected
def run_command(
    out: str,
    form: str,
    namespace: str | None,
    groups: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
    every: float | None,
    retention: float | None,
    loads: tuple[tuple[str, str], ...],
    with_report: bool,
    allowed: int,
    connection: Connection,
) -> None:
    """Read the groups' records since the last run, sample their lag, and write the tables."""
    spark = session()  # first: without PySpark, the imports below would raise ImportError
    from kafkagroup.spark.pipeline import run
    from kafkagroup.spark.weights import write_loads

    def run_once() -> None:
        properties = connection.properties()
        tables = run(
            spark,
            properties,
            out,
            format=form,
            namespace=namespace,
            allowed=allowed,
            retention=None if retention is None else timedelta(days=retention),
            on_step=_progress,
        )
        for group, file in loads:
            count = write_loads(tables.read("weights"), group, file)
            click.echo(f"{file}: loads of {count} partitions of {group}", err=True)
        if with_report:
            _report(tables, groups, exclude, as_json)

    try:
        if every is None:
            _guarded(run_once)
        else:
            _repeat(run_once, every)
    finally:
        spark.stop()


@command.command("report", short_help="Write the report on tables that are there.")
@_table_options
def report_command(
    out: str,
    form: str,
    namespace: str | None,
    groups: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the report on the tables of earlier runs. No broker is asked."""
    spark = session()  # first: without PySpark, the import below would raise ImportError
    from kafkagroup.spark.stored_tables import Tables

    tables = Tables(spark, out, form, namespace)

    def report() -> None:
        if not tables.exists("group_health"):
            raise ConfigurationError(
                f"there are no tables in {namespace or out}: kafkagroup pipeline run writes them"
            )
        _report(tables, groups, exclude, as_json)

    try:
        _guarded(report)
    finally:
        spark.stop()


def _report(tables: Any, groups: Sequence[str], exclude: Sequence[str], as_json: bool) -> None:
    from kafkagroup.spark.report import write_report

    _progress("report")
    path = write_report(tables, groups=groups, exclude=exclude)
    click.echo(json.dumps({"report": path}) if as_json else path)


def _repeat(run_once: Callable[[], None], every: float) -> None:
    """Run every `every` seconds until interrupted, also after a run that failed. Raises:
    ConfigurationError, which the next run would raise, too."""
    with suppress(KeyboardInterrupt):
        while True:
            started_at = time.monotonic()
            try:
                _guarded(run_once)
            except ConfigurationError:
                raise
            except KafkaGroupError as error:
                _progress(f"failed, and runs again in {every:g} s: {error}")
            time.sleep(max(0.0, started_at + every - time.monotonic()))


def _guarded(run_once: Callable[[], None]) -> None:
    """Call `run_once`. Raises: KafkaGroupError, also for an error of Spark, with its cause, and for
    a file that this process cannot write."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        run_once()
    except (Py4JError, PySparkException, OSError) as error:
        # Without a file name, an OSError is of the connection to the JVM.
        if isinstance(error, OSError) and error.filename is not None:
            raise KafkaGroupError(f"{error.filename}: {error.strerror}") from error
        raise KafkaGroupError(f"Spark failed: {cause_of(str(error))}") from error


_ERROR = re.compile(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception|Interrupt)): (.+)$")
"""The last line of a traceback: the class of the error, with its module, and the message."""


def cause_of(text: str) -> str:
    """Return the line that names the cause, from the text of an error of Spark.

    Spark shows the tracebacks of a Python worker within those of the JVM; the last line of the
    first traceback is the cause. Without a traceback, the first line of the text is.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for index, line in enumerate(lines):
        if line.startswith("Traceback (most recent call last)"):
            found = (m for other in lines[index + 1 :] if (m := _ERROR.match(other)))
            if (match := next(found, None)) is not None:
                return f"{match[1]}: {match[2]}"
    return lines[0] if lines else "it does not say why"


def _progress(step: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')}  {step}", err=True)


def session() -> Any:
    """Start a Spark session in this process. Raises: ConfigurationError without PySpark."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            f"the pipeline needs {error.name}: pip install 'kafkagroup[pipeline]'"
        ) from error
    # By default workers use the first python3 on the PATH, which may lack this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.appName("kafkagroup pipeline")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # One task per core; the default of 200 tasks is meant for clusters.
        .config("spark.sql.shuffle.partitions", str(os.cpu_count() or 1))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
