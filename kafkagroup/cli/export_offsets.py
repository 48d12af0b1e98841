"""`kafkagroup export-offsets`: write a group's committed offsets as JSON."""

from __future__ import annotations

from typing import TextIO

import anyio
import click

from kafkagroup import OffsetAndMetadata, TopicPartition
from kafkagroup.admin import Admin, offsets_to_json
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import group_argument
from kafkagroup.cli._selection import Selection, selecting

__all__ = ["command"]


@click.command("export-offsets", short_help="What a group has committed, as JSON.")
@group_argument
@selecting
@click.option(
    "--out",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    metavar="FILE",
    help="Where to; stdout without it.",
)
@click.option("--json", is_flag=True, expose_value=False, help="As it always is.")
@connected
def command(group: str, selection: Selection, out: TextIO, connection: Connection) -> None:
    """Write a group's committed offsets as JSON, with their metadata and leader epochs.

    `kafkagroup reset-offsets GROUP --from-file FILE` commits them, for this group or another.
    """
    found = anyio.run(_committed, group, connection)
    chosen = {tp: offset for tp, offset in found.items() if tp in selection}
    out.write(offsets_to_json(group, chosen) + "\n")


async def _committed(group: str, connection: Connection) -> dict[TopicPartition, OffsetAndMetadata]:
    async with Admin(**connection.options(Admin)) as admin:
        found = (await admin.committed([group]))[group]
    if isinstance(found, Exception):
        raise found
    return found
