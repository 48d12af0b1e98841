"""`kafkagroup doctor`: diagnose the connection between this machine and a cluster."""

from __future__ import annotations

import anyio
import attrs
import click
from rich.console import Console
from rich.text import Text

from kafkagroup.admin.doctor import Finding, Status, examine
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._view import console, plain, print_json
from kafkagroup.cli._words import in_shell_words

__all__ = ["command"]

_STYLES = {
    Status.OK: "green",
    Status.WARNING: "yellow",
    Status.FAILED: "bold red",
    Status.NOT_CHECKED: "dim",
}

_INDENT = 13
"""The width of the status column: the longest status, and two spaces."""


@click.command("doctor", short_help="Diagnose the connection to a cluster.")
@click.option("--group", "groups", metavar="GROUP", multiple=True, help="Check this group, too.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Check this topic, too.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600.0),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="The timeout of each connection and response.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@connected
def command(
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    timeout: float,
    as_json: bool,
    connection: Connection,
) -> None:
    """Check the connection from this machine to a cluster step by step, and print what is wrong and
    what to do: names, connections, TLS, versions, SASL, the addresses that brokers advertise, the
    offsets topic; with --group and --topic, also what this client may do with them.

    The command joins no group and writes nothing. A new cluster creates its offsets topic when a
    group is looked up. The exit code is 1 if a check has failed.
    """
    options = connection.options()

    async def run() -> list[Finding]:
        found = []
        async for finding in examine(
            options["bootstrap_servers"],
            security=options["security"],
            client_id=options.get("client_id", "kafkagroup"),
            groups=groups,
            topics=topics,
            timeout=timeout,
        ):
            finding = attrs.evolve(
                finding,
                text=in_shell_words(finding.text),
                advice=in_shell_words(finding.advice),
            )
            found.append(finding)
            if not as_json:
                _show(terminal, finding)
        return found

    terminal = console()
    found = anyio.run(run)
    if as_json:
        print_json({"findings": [attrs.asdict(finding) for finding in found]})
    if any(finding.status is Status.FAILED for finding in found):
        raise click.exceptions.Exit(1)


def _show(terminal: Console, finding: Finding) -> None:
    what = f"{finding.check} {finding.subject}".rstrip()
    status = Text(f"{finding.status:<{_INDENT}}", style=_STYLES[finding.status])
    # Not wrapped, so that the lines can be searched and copied.
    terminal.print(status.append(plain(f"{what}: {finding.text}")), soft_wrap=True)
    if finding.advice:
        terminal.print(" " * _INDENT, "-> ", plain(finding.advice), sep="", soft_wrap=True)
