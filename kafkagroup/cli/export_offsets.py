"""`kafkagroup export-offsets`: write a group's committed offsets as JSON."""

from __future__ import annotations

from typing import TextIO

import click

from kafkagroup import KafkaGroupError, OffsetAndMetadata, TopicPartition
from kafkagroup.admin import Admin, offsets_to_json
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import group_argument
from kafkagroup.cli._selection import Selection, selecting

__all__ = ["command"]


@click.command("export-offsets", short_help="Write a group's committed offsets as JSON.")
@group_argument
@selecting
@click.option(
    "--out",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    metavar="FILE",
    help="The file to write. Default: stdout.",
)
@click.option("--json", is_flag=True, expose_value=False, help="Has no effect: always JSON.")
@connected
def command(group: str, selection: Selection, out: TextIO, connection: Connection) -> None:
    """Write a group's committed offsets as JSON, with their metadata and leader epochs.

    `kafkagroup reset-offsets GROUP --from-file FILE` commits them, for this group or another of
    the same cluster. The cluster's id is written, too.
    """
    found, cluster_id = connection.run(lambda admin: _committed(admin, group))
    chosen = {tp: offset for tp, offset in found.items() if tp in selection}
    if selection and not chosen:
        # A misspelt topic: the file would look like a backup.
        raise KafkaGroupError(f"group {group!r} has no committed offsets of what is selected")
    out.write(offsets_to_json(group, chosen, cluster_id) + "\n")


async def _committed(
    admin: Admin, group: str
) -> tuple[dict[TopicPartition, OffsetAndMetadata], str | None]:
    found = (await admin.committed([group]))[group]
    if isinstance(found, Exception):
        raise found
    if not found:
        # A misspelt group has no offsets either: the file would look like a backup.
        await admin.describe_group(group)
    return found, admin.cluster_id
