"""The proxy applies exactly its planned faults to a connection."""

import math
import random
import socket
import threading
from contextlib import aclosing, asynccontextmanager, suppress

import anyio
import pytest
from anyio.streams.stapled import StapledObjectStream
from proxy import HOST, NO_FAULTS, ConnectionFaults, End, FaultPolicy, Proxy, Relay

MESSAGE = random.Random(0).randbytes(5_000)


def pair():
    """Return two ends of a connection in memory that keeps chunks whole."""
    to_right, right = anyio.create_memory_object_stream[bytes](math.inf)
    to_left, left = anyio.create_memory_object_stream[bytes](math.inf)
    return StapledObjectStream(to_right, left), StapledObjectStream(to_left, right)


class RunningRelay:
    """A relay with planned faults, and its ends."""

    def __init__(self, **faults):
        self.client, self._towards_client = pair()
        self.server, self._towards_server = pair()
        self.relay = Relay(ConnectionFaults(**faults), self._towards_client, self._towards_server)
        self.end = "it runs"
        self.took = math.nan

    async def run(self):
        began = anyio.current_time()
        self.end = await self.relay.run()
        self.took = anyio.current_time() - began

    async def aclose(self):
        for stream in (self.client, self._towards_client, self.server, self._towards_server):
            await stream.aclose()


@asynccontextmanager
async def relaying(**faults):
    """Run a relay; wait for its end on exit."""
    running = RunningRelay(**faults)
    async with aclosing(running), anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        yield running


async def receive_all(stream, count):
    pieces = []
    while sum(map(len, pieces)) < count:
        pieces.append(await stream.receive())
    return pieces


@pytest.mark.anyio
async def test_without_a_fault_bytes_pass_until_a_side_closes():
    async with relaying() as running:
        for number in range(3):
            await running.client.send(b"%d" % number + MESSAGE)
            assert await running.server.receive() == b"%d" % number + MESSAGE
        await running.server.send(b"answer")
        assert await running.client.receive() == b"answer"
        await anyio.sleep(3600.0)
        await running.server.send_stream.aclose()
    assert running.end is None
    assert running.relay.occurred == set()


@pytest.mark.anyio
async def test_fragments_are_the_same_bytes_in_small_pieces_and_then_whole():
    async with relaying(fragmented=1_000) as running:
        await running.client.send(MESSAGE[:300])
        await running.client.send(MESSAGE[300:])
        pieces = await receive_all(running.server, len(MESSAGE))
        await running.client.send_stream.aclose()
    assert b"".join(pieces) == MESSAGE
    assert max(map(len, pieces[:-1])) == 7
    assert pieces[-1] == MESSAGE[1_000:]
    assert running.relay.occurred == {"fragmented"}


@pytest.mark.anyio
async def test_bytes_received_in_a_stall_pass_after_it():
    async with relaying(stall=(1.0, 4.0)) as running:
        began = anyio.current_time()
        await running.client.send(b"before")
        assert await running.server.receive() == b"before"
        await anyio.sleep(2.0)
        await running.client.send(b"within")
        assert await running.server.receive() == b"within"
        assert anyio.current_time() - began == pytest.approx(4.0)
        await running.client.send_stream.aclose()
    assert running.relay.occurred == {"stalled"}


@pytest.mark.anyio
@pytest.mark.parametrize("end", [End.CLOSED, End.RESET])
async def test_a_connection_is_cut_at_its_planned_time(end):
    async with relaying(life=1.5, end=end) as running:
        pass
    assert (running.end, running.took) == (end, pytest.approx(1.5))
    assert running.relay.occurred == {end}


@pytest.mark.anyio
async def test_a_silenced_connection_is_open_until_it_is_cut():
    async with relaying(life=1.5, stall=(0.5, math.inf)) as running:
        await anyio.sleep(1.0)
        await running.client.send(b"is anybody there?")
        with anyio.move_on_after(9.0) as patience:
            await running.server.receive()
    assert patience.cancelled_caught
    assert running.took == pytest.approx(1.5)
    assert running.relay.occurred == {"silenced", End.CLOSED}


@pytest.mark.anyio
async def test_half_of_the_last_message_passes_where_it_is_truncated():
    async with relaying(life=1.0, end=End.TRUNCATED) as running:
        await anyio.sleep(1.1)
        await running.client.send(MESSAGE)
        assert await running.server.receive() == MESSAGE[:2_500]
    assert running.took == pytest.approx(1.1)
    assert running.relay.occurred == {End.TRUNCATED}


@pytest.mark.anyio
async def test_without_a_message_there_is_nothing_to_truncate():
    async with relaying(life=1.0, end=End.TRUNCATED) as running:
        pass
    assert running.took == pytest.approx(1.25)
    assert running.relay.occurred == {End.RESET}


class TestFaultPolicy:
    def drawn(self, count=2_000, seed=7, **policy):
        return [FaultPolicy(**policy).draw(seed, number) for number in range(count)]

    def test_a_seed_determines_the_faults(self):
        assert self.drawn() == self.drawn()
        assert self.drawn(count=1, seed=8) != self.drawn(count=1, seed=7)
        # Another process, with other hashes, draws the same.
        assert FaultPolicy().draw(1, 4) == ConnectionFaults(
            life=1.2406273961482044,
            end=End.CLOSED,
            stall=(0.17870052045703974, 0.6466922380639092),
            seed=2636085135,
        )

    def test_every_connection_is_cut_within_its_limits_and_in_every_way(self):
        drawn = self.drawn(life=(0.5, 1.5))
        lives = [faults.life for faults in drawn]
        assert 0.5 <= min(lives) < 0.51
        assert 1.49 < max(lives) <= 1.5
        assert {faults.end for faults in drawn} == set(End)

    def test_some_connections_stall_and_some_are_silenced(self):
        drawn = self.drawn(stall=(0.05, 0.5), stalled=0.2, silenced=0.05)
        lengths = [end - begin for begin, end in (f.stall for f in drawn) if begin < math.inf]
        silent = lengths.count(math.inf)
        assert 60 < silent < 140
        assert 340 < len(lengths) - silent < 460
        assert all(0.05 <= length <= 0.5 for length in lengths if length < math.inf)
        assert all(f.stall[0] <= f.life for f in drawn if f.stall[0] < math.inf)

    def test_some_are_fragmented(self):
        drawn = self.drawn(fragmented=0.25)
        assert 430 < sum(faults.fragmented > 0 for faults in drawn) < 570

    def test_without_faults_nothing_is_cut(self):
        assert NO_FAULTS.draw(1, 1) == ConnectionFaults()


@pytest.fixture
def echo():
    """Return the address of an echo server."""

    def serve(connection):
        with connection, suppress(ConnectionResetError):
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept(listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        yield f"{HOST}:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


class TestProxy:
    def connect(self, proxy, node=0):
        return socket.create_connection((HOST, proxy.ports[node]), timeout=10.0)

    def test_the_proxy_forwards_to_the_nodes(self, echo):
        policy = FaultPolicy(life=(60.0, 60.0), fragmented=1.0, stalled=0.0, silenced=0.0)
        with Proxy(2, seed=1, policy=policy) as proxy:
            proxy.set_targets([f"{HOST}:1", echo])
            with self.connect(proxy, 1) as connection, connection.makefile("rb") as responses:
                connection.sendall(MESSAGE)
                assert responses.read(len(MESSAGE)) == MESSAGE
            with self.connect(proxy, 0) as connection:
                assert connection.recv(1) == b""
        assert proxy.addresses == ",".join(f"{HOST}:{port}" for port in proxy.ports)
        assert proxy.faults == {"fragmented": 1, "refused": 1}
        assert (proxy.connections, proxy.cut) == (2, 0)

    def test_the_error_that_ends_the_proxy_is_raised(self, echo):
        class Broken(FaultPolicy):
            def draw(self, seed, number):
                raise LookupError("broken")

        with Proxy(1, seed=1, policy=Broken()) as proxy:
            proxy.set_targets([echo])
            proxy.raise_if_ended()
            self.connect(proxy).close()
            with pytest.RaisesGroup(LookupError, flatten_subgroups=True):
                while True:
                    proxy.raise_if_ended()

    def test_the_proxy_continues_after_cutting_connections(self, echo):
        with Proxy(
            1, seed=2, policy=FaultPolicy(life=(0.0, 0.0), stalled=0.0, silenced=0.0)
        ) as proxy:
            proxy.set_targets([echo])
            ends = set()
            for _ in range(12):
                try:
                    with self.connect(proxy) as connection:
                        ends.add(connection.recv(1))
                except ConnectionResetError:
                    ends.add("reset")
            proxy.policy = NO_FAULTS
            with self.connect(proxy) as connection:
                connection.sendall(b"all well?")
                assert connection.recv(100) == b"all well?"
        assert ends == {b"", "reset"}
        assert proxy.cut == 12
        assert set(proxy.faults) == {End.CLOSED, End.RESET}
