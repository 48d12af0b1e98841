"""`kafkagroup doctor`: what keeps this machine from its cluster, and what to do."""

from __future__ import annotations

import json
import sys

import anyio
import attrs
import click
from rich.console import Console
from rich.text import Text

from kafkagroup.admin.doctor import Finding, Status, examine
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.errors import printable

__all__ = ["command"]

_STYLES = {
    Status.OK: "green",
    Status.WARNING: "yellow",
    Status.FAILED: "bold red",
    Status.NOT_CHECKED: "dim",
}


@click.command("doctor", short_help="What keeps me from the cluster, and what can I do?")
@click.option("--group", "groups", metavar="GROUP", multiple=True, help="Look at this group, too.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Look at this topic, too.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600.0),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="For each connection and each answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one value.")
@connected
def command(
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    timeout: float,
    as_json: bool,
    connection: Connection,
) -> None:
    """Look at all that lies between this machine and a cluster, one after the other, and say what
    is wrong and what to do: names, connections, TLS, versions, SASL, the addresses that brokers
    advertise, the offsets topic; with --group and --topic also what this client may do with them.

    Only looks: nobody joins, and nothing is written. Ends with 1 when something has failed.
    """
    options = connection.options()

    async def look() -> list[Finding]:
        found = []
        async for finding in examine(
            options["bootstrap_servers"],
            security=options["security"],
            client_id=options.get("client_id", "kafkagroup"),
            groups=groups,
            topics=topics,
            timeout=timeout,
        ):
            found.append(finding)
            if not as_json:
                _show(console, finding)
        return found

    console = Console(highlight=False, soft_wrap=True)
    found = anyio.run(look)
    if as_json:
        values = [attrs.asdict(finding) for finding in found]
        click.echo(json.dumps({"findings": values}, indent=2))
    sys.exit(any(finding.status is Status.FAILED for finding in found))


def _show(console: Console, finding: Finding) -> None:
    style = _STYLES[finding.status]
    what = f"{finding.check} {printable(finding.subject)}".rstrip()
    console.print(
        Text.assemble((f"{finding.status:<11}", style), f"  {what}: {printable(finding.text)}")
    )
    if finding.advice:
        console.print(Text(f"{'':13}-> {printable(finding.advice)}", style="bold"))
