"""`kafkagroup broker`: an embedded Kafka cluster in the foreground, for scripts and experiments."""

from __future__ import annotations

import errno
import json
import re
from contextlib import AsyncExitStack

import anyio
import click

from kafkagroup._signals import open_signal_receiver
from kafkagroup.errors import KafkaGroupError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings

__all__ = ["command"]

_MAX_NODES = 100
_MAX_PARTITIONS = 10_000
"""Most partitions of one topic: each has a log in the memory of this process."""
_TOPIC = re.compile(r"([a-zA-Z0-9._-]{1,249})(?::([1-9][0-9]{0,4}))?")
"""A name that Kafka allows, and optionally the number of partitions."""


class _Topic(click.ParamType[tuple[str, int]]):
    """NAME or NAME:PARTITIONS."""

    name = "topic"

    def convert(
        self,
        value: str | tuple[str, int],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, int]:
        if isinstance(value, tuple):  # click may convert a value again
            return value
        found = _TOPIC.fullmatch(value)
        if found is None or int(found[2] or 1) > _MAX_PARTITIONS:
            self.fail(
                f"{value!r}; expected NAME or NAME:PARTITIONS, of letters, digits, '.', '_' and"
                f" '-', and up to {_MAX_PARTITIONS} partitions",
                param,
                ctx,
            )
        return found[1], int(found[2] or 1)


@click.command("broker", short_help="An embedded broker in the foreground, for scripts and tests.")
@click.option(
    "--topic",
    "topics",
    type=_Topic(),
    metavar="NAME[:PARTITIONS]",
    multiple=True,
    help="A topic to create at the start; repeatable. Others are created on first use.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="The port of the first node; the others have the next ones. 0: any free ports.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, _MAX_NODES),
    default=1,
    show_default=True,
    help="How many brokers the cluster has.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
def command(
    topics: tuple[tuple[str, int], ...], host: str, port: int, nodes: int, as_json: bool
) -> None:
    """Run a Kafka cluster in memory until SIGINT or SIGTERM; the exit code is then 0.

    As soon as the cluster listens, the command prints its addresses on one line. The data is lost
    when the command ends. The cluster is no substitute for Kafka in production.
    """
    if port and port + nodes - 1 > 65535:
        raise click.UsageError(f"--port {port} leaves no room for {nodes} nodes")
    counts: dict[str, int] = {}
    for name, partitions in topics:
        if counts.setdefault(name, partitions) != partitions:
            raise click.UsageError(f"--topic {name} is given twice with different partitions")
    ports = [port + n if port else 0 for n in range(nodes)]
    kafka = EmbeddedKafka(
        counts,
        nodes=nodes,
        host=host,
        ports=ports,
        settings=BrokerSettings(auto_create_topics=True),
    )
    requested = ",".join(f"{host}:{port}" for port in ports)
    anyio.run(_serve, kafka, requested, counts, as_json)


async def _serve(
    kafka: EmbeddedKafka, requested: str, topics: dict[str, int], as_json: bool
) -> None:
    """`requested`: the addresses of the nodes, with port 0 where the system chooses one."""
    async with AsyncExitStack() as stack:
        signals = stack.enter_context(open_signal_receiver())
        try:
            await stack.enter_async_context(kafka)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            advice = "; give another --port, or 0 for any free one" if taken else ""
            why = error.strerror or str(error)
            raise KafkaGroupError(f"cannot listen on {requested}: {why}{advice}") from error
        servers = kafka.bootstrap_servers
        value = json.dumps({"bootstrap_servers": servers, "topics": topics})
        # Unlike print, this flushes: a script may wait for the line on a pipe.
        click.echo(value if as_json else servers)
        await anext(signals)
