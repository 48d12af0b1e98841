"""The requests and responses that are recorded in a member's own process."""

import pytest
from anyio.abc import ByteStream
from wire import record_connections

from kafkagroup.transport import dialing


def request(client):
    """Return a request; length, API, version and correlation id do not matter, the name does."""
    return bytes(12) + len(client).to_bytes(2, "big") + client.encode() + b"body"


class Echo(ByteStream):
    """A stream that returns all bytes that it was sent."""

    def __init__(self):
        self._said = b""

    async def send(self, item):
        self._said += item

    async def receive(self, max_bytes=65536):
        said, self._said = self._said[:max_bytes], self._said[max_bytes:]
        return said

    async def send_eof(self):
        raise AssertionError

    async def aclose(self):
        self._said = b""


class Tap:
    """Records the exchanges."""

    def __init__(self):
        self.heard = []

    def connected(self, *what):
        self.heard.append(("connected", *what))

    def sent(self, *what):
        self.heard.append(("sent", *what))

    def received(self, *what):
        self.heard.append(("received", *what))


@pytest.mark.anyio
async def test_the_connections_of_one_client_are_decoded(monkeypatch):
    async def connect(family, address, source):
        return Echo()

    monkeypatch.setattr(dialing, "connect", connect)
    tap = Tap()
    with record_connections(tap, "m1"):
        for client in ("m1", "m1-producer", "m1"):
            async with await dialing.connect(0, ("host", 1), None) as stream:
                await stream.send(request(client))
                assert await stream.receive() == request(client)
                await stream.send(b"more")
    assert dialing.connect is connect
    assert tap.heard == [
        (kind, "m1", connection, *data)
        for connection in (1, 3)
        for kind, *data in (
            ("connected",),
            ("sent", request("m1")),
            ("received", request("m1")),
            ("sent", b"more"),
        )
    ]
