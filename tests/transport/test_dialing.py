"""Connections: the addresses of a name are tried beside each other, and failures name the cause."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import anyio
import pytest

from kafkagroup.errors import ConnectionLostError
from kafkagroup.transport import dialing
from kafkagroup.transport.dialing import open_stream
from kafkagroup.transport.names import Names, Resolved, UnresolvedError
from kafkagroup.transport.options import ClientOptions

pytestmark = pytest.mark.anyio

V4, V6 = socket.AF_INET, socket.AF_INET6
REFUSED = OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


class Stream:
    """A connection, as far as dialing is concerned."""

    def __init__(self, address: Any) -> None:
        self.address = address
        self.is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True


class Hosts:
    """Names with addresses, each of which accepts after some seconds or fails."""

    def __init__(self) -> None:
        self.names: dict[str, Resolved | Exception] = {}
        self.behaviours: dict[str, float | Exception] = {}
        """Address -> seconds until it accepts, or its error."""
        self.dialled: list[tuple[float, int, Any, Any]] = []
        self.streams: list[Stream] = []

    async def resolve(self, host: str, until: float) -> Resolved:
        found = self.names[host]
        if isinstance(found, Exception):
            raise found
        return found

    async def connect(self, family: int, address: Any, source: Any) -> Stream:
        self.dialled.append((anyio.current_time(), family, address, source))
        behaviour = self.behaviours[address[0]]
        if isinstance(behaviour, Exception):
            raise behaviour
        await anyio.sleep(behaviour)
        self.streams.append(Stream(address))
        return self.streams[-1]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    made = Hosts()
    monkeypatch.setattr(dialing, "connect", made.connect)
    monkeypatch.setattr(Names, "resolve", lambda _, host, until: made.resolve(host, until))
    return made


async def dial(host: str, **options: Any) -> Any:
    until = anyio.current_time() + 10
    return await open_stream(host, 9092, ClientOptions(**options), Names(), until)


async def test_the_next_address_is_tried_while_the_first_hangs(hosts: Hosts) -> None:
    hosts.names["kafka"] = Resolved([(V6, ("::2", 0, 0, 0)), (V4, ("10.0.0.1", 0))])
    hosts.behaviours = {"::2": 60.0, "10.0.0.1": 0.1}
    began_at = anyio.current_time()
    stream = await dial("kafka")
    assert stream.address == ("10.0.0.1", 9092)
    assert anyio.current_time() - began_at == pytest.approx(0.35)
    assert [what[1:] for what in hosts.dialled] == [
        (V6, ("::2", 9092, 0, 0), None),
        (V4, ("10.0.0.1", 9092), None),
    ]


async def test_the_next_address_is_tried_as_soon_as_one_fails(hosts: Hosts) -> None:
    hosts.names["kafka"] = Resolved([(V4, ("10.0.0.1", 0)), (V4, ("10.0.0.2", 0))])
    hosts.behaviours = {"10.0.0.1": REFUSED, "10.0.0.2": 0.0}
    assert (await dial("kafka")).address == ("10.0.0.2", 9092)
    assert hosts.dialled[0][0] == hosts.dialled[1][0]


async def test_only_one_of_two_connections_stays_open(hosts: Hosts) -> None:
    hosts.names["kafka"] = Resolved([(V4, ("10.0.0.1", 0)), (V4, ("10.0.0.2", 0))])
    hosts.behaviours = {"10.0.0.1": 0.5, "10.0.0.2": 0.25}
    stream = await dial("kafka")
    assert [other.is_closed for other in hosts.streams] == [o is not stream for o in hosts.streams]


@pytest.mark.parametrize(
    ("behaviours", "why"),
    [
        ([REFUSED], "Connection refused"),
        ([REFUSED, REFUSED], "Connection refused"),
        ([REFUSED, OSError(errno.ENETUNREACH, "")], "Connection refused, Network is unreachable"),
        ([60.0], "no connection within 10.0 s"),
        ([60.0, REFUSED], "no connection within 10.0 s"),
        ([TimeoutError(errno.ETIMEDOUT, "")], "Connection timed out"),
    ],
)
async def test_a_failure_has_the_reasons_of_all_addresses(
    hosts: Hosts, behaviours: list[Any], why: str
) -> None:
    addresses = [f"10.0.0.{n}" for n in range(len(behaviours))]
    hosts.names["kafka"] = Resolved([(V4, (address, 0)) for address in addresses])
    hosts.behaviours = dict(zip(addresses, behaviours, strict=True))
    with pytest.raises(ConnectionLostError) as failed:
        await dial("kafka")
    assert str(failed.value) == why


async def test_a_failure_of_an_old_address_says_that_it_is_old(hosts: Hosts) -> None:
    late = "the name is not resolved within 1 s"
    hosts.names["kafka"] = Resolved([(V4, ("10.0.0.1", 0))], late)
    hosts.behaviours["10.0.0.1"] = REFUSED
    with pytest.raises(ConnectionLostError, match=f"^Connection refused; {late}$"):
        await dial("kafka")


async def test_a_name_that_is_not_resolved_is_not_the_brokers_failure(hosts: Hosts) -> None:
    hosts.names["kafka"] = UnresolvedError("the name is not resolved within 10 s")
    with pytest.raises(UnresolvedError, match=r"^the name is not resolved within 10 s$"):
        await dial("kafka")


async def test_a_local_address_is_of_the_family_of_the_brokers(hosts: Hosts) -> None:
    hosts.names["kafka"] = Resolved([(V6, ("::2", 0, 0, 0)), (V4, ("10.0.0.1", 0))])
    hosts.names["here"] = Resolved([(V4, ("10.0.0.7", 0)), (V4, ("10.0.0.8", 0))])
    hosts.behaviours = {"10.0.0.1": 0.0}
    await dial("kafka", source_host="here", source_port=4711)
    assert [what[1:] for what in hosts.dialled] == [(V4, ("10.0.0.1", 9092), ("10.0.0.7", 4711))]
    hosts.names["kafka"] = Resolved([(V6, ("::2", 0, 0, 0))])
    with pytest.raises(ConnectionLostError, match="source_host has no address of the families"):
        await dial("kafka", source_host="here")


async def test_a_source_port_needs_no_source_host(hosts: Hosts) -> None:
    """Without a source_host it was ignored."""
    hosts.names["kafka"] = Resolved([(V4, ("10.0.0.1", 0))])
    hosts.behaviours = {"10.0.0.1": 0.0}
    await dial("kafka", source_port=4711)
    assert [what[1:] for what in hosts.dialled] == [(V4, ("10.0.0.1", 9092), ("", 4711))]


async def test_a_source_host_that_is_not_resolved_is_named(hosts: Hosts) -> None:
    """The error seemed to be about the broker's name."""
    hosts.names["kafka"] = Resolved([(V4, ("10.0.0.1", 0))])
    hosts.names["here"] = UnresolvedError("the name is not resolved: no such name")
    with pytest.raises(UnresolvedError) as caught:
        await dial("kafka", source_host="here")
    assert str(caught.value) == "source_host 'here': the name is not resolved: no such name"
