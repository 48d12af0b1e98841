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


@click.group("pipeline", short_help="Compute tables and a report of the health of groups.")
def command() -> None:
    """Compute tables of the groups in __consumer_offsets, with PySpark in this process.

    Needs Java 17 and the extra `pipeline`. For your own Spark, see `kafkagroup.spark.pipeline`.
    """


@command.command("run", short_help="Read new records, and write the tables and the report.")
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
    "--every",
    type=click.FloatRange(1.0),
    metavar="SECONDS",
    help="Repeat until interrupted. Default: run once, for example from cron.",
)
@click.option(
    "--loads",
    type=(str, click.Path(dir_okay=False, writable=True)),
    metavar="GROUP FILE",
    multiple=True,
    help="Write the group's loads to a file that a LoadsFile of its members reads.",
)
@click.option("--report/--no-report", default=True, help="Whether to write report.html.")
@click.option("--json", "as_json", is_flag=True, help="Print the path of the report as JSON.")
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
    """Read the groups' records since the last run, sample their lag, and write the tables."""
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
                told=_progress,
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
    """Start a Spark session in this process. Raises: ConfigurationError without PySpark."""
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
