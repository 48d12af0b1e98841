"""`python -m kafkagroup.testing.embedded --port 9092 --topic orders:4`: a broker to play with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import anyio

from kafkagroup.testing.embedded.kafka import EmbeddedKafka
from kafkagroup.testing.embedded.settings import BrokerSettings


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve in the foreground until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m kafkagroup.testing.embedded", description=__doc__
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=9092, help="port of the first node; 0 for any")
    parser.add_argument("--nodes", type=int, default=1, help="how many broker ids")
    parser.add_argument(
        "--topic", type=_topic, action="append", default=[], metavar="NAME[:PARTITIONS]"
    )
    options = parser.parse_args(arguments)
    kafka = EmbeddedKafka(
        dict(options.topic),
        nodes=options.nodes,
        host=options.host,
        ports=[options.port + n if options.port else 0 for n in range(options.nodes)],
        settings=BrokerSettings(auto_create_topics=True),
    )
    try:
        anyio.run(_serve, kafka)
    except KeyboardInterrupt:
        sys.exit(130)


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    return name, int(partitions or 1)


async def _serve(kafka: EmbeddedKafka) -> None:
    async with kafka:
        print(kafka.bootstrap_servers, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    main()
