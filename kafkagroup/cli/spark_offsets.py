"""`kafkagroup spark-offsets`: where the checkpoint of a Spark query ends, as `startingOffsets`."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click

from kafkagroup.cli.pipeline import cause_of, session
from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.checkpoints import positions_of_sources

__all__ = ["command"]


@click.command("spark-offsets", short_help="Print where the checkpoint of a Spark query ends.")
@click.argument("checkpoint")
@click.option(
    "--source",
    type=click.IntRange(0),
    metavar="N",
    help="Of a query with several sources, only the one with this number, from 0 on. Default: one"
    " line for each source of Kafka.",
)
@click.option("--json", is_flag=True, expose_value=False, help="Has no effect: always JSON.")
def command(checkpoint: str, source: int | None) -> None:
    """Print the end of the last batch in a checkpoint, in the format of the option startingOffsets.

    A query of format("kafka") with this option and a new checkpoint begins there. CHECKPOINT is a
    folder, or the URL of one, which Spark reads in this process.
    """
    found = dict(enumerate(positions_of_sources(_last_offsets(checkpoint))))
    wanted = {n: p for n, p in found.items() if p is not None and source in (None, n)}
    if not wanted:
        which = "no source of Kafka" if source is None else f"no source {source} of Kafka"
        raise ConfigurationError(f"{checkpoint} has {which}: its query has {len(found)} sources")
    for n, positions in wanted.items():
        if len(wanted) > 1:
            click.echo(f"source {n}:", err=True)
        assert positions is not None  # as `wanted` has them
        click.echo(json.dumps(positions.by_topic(), separators=(",", ":")))


def _last_offsets(checkpoint: str) -> str:
    """Return the text of the offset log's file for the last batch that is in the commit log.
    Raises: ConfigurationError if there is none, or it cannot be read."""
    url = urlsplit(checkpoint)
    if len(url.scheme) > 1 and url.scheme != "file":  # one letter is a drive of Windows
        return _read_by_spark(checkpoint)
    folder = Path(unquote(url.path) if url.scheme == "file" else checkpoint)
    log = folder / "commits"  # it has a file for each batch that has ended, named by its number
    try:
        numbers = [int(p.name) for p in log.iterdir() if p.name.isdecimal()] if log.is_dir() else []
        if not numbers:
            raise _without_batch(checkpoint)
        return (folder / "offsets" / str(max(numbers))).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the offsets of {checkpoint} cannot be read: {error}") from error


def _read_by_spark(checkpoint: str) -> str:
    spark = session()  # first: without PySpark, the imports below would raise ImportError
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from kafkagroup.spark.files import last_number, read_text

    try:
        last = last_number(spark, f"{checkpoint}/commits")
        if last is None:
            raise _without_batch(checkpoint)
        return read_text(spark, f"{checkpoint}/offsets/{last}")
    except (Py4JError, PySparkException) as error:
        # A Py4JJavaError has the error of the JVM as `java_exception`; its own text only says which
        # call failed.
        cause = cause_of(str(getattr(error, "java_exception", error)))
        raise ConfigurationError(f"the offsets of {checkpoint} cannot be read: {cause}") from error
    finally:
        spark.stop()


def _without_batch(checkpoint: str) -> ConfigurationError:
    return ConfigurationError(
        f"{checkpoint} is no checkpoint of a query that has ended a batch: it has no files in the"
        " folder commits; give the checkpointLocation of the query"
    )
