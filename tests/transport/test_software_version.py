"""The name and the version that are sent to brokers, which operators read in their metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import kafkagroup
from kafkagroup import _version
from kafkagroup.admin.doctor import examine
from kafkagroup.broker import Broker
from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded import EmbeddedKafka
from kafkagroup.transport.options import parse_servers
from kafkagroup.wire.messages.metadata import ApiVersionsRequest


def test_brokers_get_the_version_that_runs() -> None:
    """It was "0.1", whatever was installed."""
    sent = set()

    def note(request: ApiVersionsRequest) -> bool:
        sent.add((request.client_software_name, request.client_software_version))
        return False

    async def connect(servers: str) -> None:
        (address,) = parse_servers(servers)
        async with Broker.open(*address):
            pass
        async for _ in examine(servers):
            pass

    with EmbeddedKafka() as kafka:
        kafka.fail(ApiVersionsRequest, ErrorCode.NONE, times=None, when=note)
        asyncio.run(connect(kafka.bootstrap_servers))
    assert sent == {(name, kafkagroup.__version__) for name in ("kafkagroup", "kafkagroup-doctor")}


def test_a_local_version_is_sent_in_characters_that_brokers_accept() -> None:
    """With its `+` each broker would refuse the connection."""
    code = Path(_version.__file__).read_text("utf-8")
    names: dict[str, object] = {}
    exec(code.replace(f'"{kafkagroup.__version__}"', '"1.2.3+debian.1"'), names)
    assert (names["VERSION"], names["SOFTWARE_VERSION"]) == ("1.2.3+debian.1", "1.2.3-debian.1")
