"""`kafkagroup pipeline`: the history of a cluster's groups as tables, and as a page."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import click

from kafkagroup.cli._connection import Connection, connected
from kafkagroup.errors import ConfigurationError

__all__ = ["command", "session"]


@click.group("pipeline", short_help="How do the groups of a cluster do? Tables and a report.")
def command() -> None:
    """What __consumer_offsets tells of groups, as tables, on PySpark in this process.

    Needs Java 17 and the extra `pipeline`. In a Spark of your own: `kafkagroup.spark.pipeline`.
    """


@command.command("run", short_help="Read what is new, and make the tables and the report.")
@click.option(
    "--out", metavar="DIR", required=True, help="Where the tables are: a path, or Spark's URL."
)
@click.option("--format", "form", default="parquet", show_default=True, help="Of the tables.")
@click.option(
    "--namespace",
    metavar="NAME",
    help="Of a catalog of Spark's, such as lake.kafka: the tables are there, by name.",
)
@click.option(
    "--every",
    type=click.FloatRange(1.0),
    metavar="SECONDS",
    help="Again and again, until it is interrupted. Default: once, as for cron.",
)
@click.option(
    "--loads",
    type=(str, click.Path(dir_okay=False, writable=True)),
    metavar="GROUP FILE",
    multiple=True,
    help="Write the group's loads where a LoadsFile of its members reads them.",
)
@click.option("--report/--no-report", default=True, help="Whether to make report.html.")
@click.option("--json", "as_json", is_flag=True, help="Print where the report is as JSON.")
@connected
def run_command(
    out: str,
    form: str,
    namespace: str | None,
    every: float | None,
    loads: tuple[tuple[str, str], ...],
    report: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Read what groups have done since the last run, sample their lag, make the tables."""
    spark = session()
    from kafkagroup.spark.pipeline import run
    from kafkagroup.spark.report import write_report
    from kafkagroup.spark.weights import write_loads

    try:
        while True:
            started = time.monotonic()
            tables = run(
                spark,
                connection.properties(),
                out,
                format=form,
                namespace=namespace,
                on_step=_progress,
            )
            for group, file in loads:
                count = write_loads(tables.read("weights"), group, file)
                click.echo(f"{file}: loads of {count} partitions of {group}", err=True)
            if report:
                _progress("report")
                path = write_report(tables)
                click.echo(json.dumps({"report": path}) if as_json else path)
            if every is None:
                return
            time.sleep(max(0.0, started + every - time.monotonic()))
    except KeyboardInterrupt:
        if every is None:
            raise
    finally:
        spark.stop()


def _progress(step: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')}  {step}", err=True)


def session() -> Any:
    """A Spark session in this process. Raises: ConfigurationError without PySpark."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            f"the pipeline needs {error.name}: pip install 'kafkagroup[pipeline]'"
        ) from error
    # Otherwise workers use another Python interpreter, and fail at once.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.appName("kafkagroup pipeline")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # At most one per core; the default of 200 tasks is meant for clusters.
        .config("spark.sql.shuffle.partitions", str(os.cpu_count() or 1))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
