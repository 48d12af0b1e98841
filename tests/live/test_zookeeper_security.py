"""The security of members in a real ZooKeeper: TLS, authentication, and permissions of nodes."""

import logging
import traceback

import anyio
import pytest
from certificates import Authority, authority
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from kafkagroup import ConfigurationError, GroupMember, GroupProtocol, Security, ZooKeeperMembership
from kafkagroup.errors import TlsError
from kafkagroup.testing import LocalZooKeeper
from kafkagroup.testing.local import LocalKafkaUnavailable
from kafkagroup.zookeeper import access

pytestmark = pytest.mark.anyio

CANARY = "canary-7c1e"
"""A password that must not appear in any output."""

ANN = {"username": "ann", "password": CANARY, "allow_plaintext_credentials": True}


@pytest.fixture(scope="module")
def zookeeper():
    ensemble = LocalZooKeeper(certificate=authority().issue().pem, client_ca=authority().pem)
    try:
        ensemble.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real ZooKeeper on this machine: {error}")
    yield ensemble
    ensemble.stop()


@pytest.fixture
def hosts(zookeeper, name):
    """Return a path of this test: existing nodes have other owners."""
    return f"{zookeeper.hosts}/{name}"


def member(membership, value=b""):
    protocol = GroupProtocol("workers", "all", value, lambda members: members)
    return GroupMember("g", protocol, bootstrap_servers="127.0.0.1:1", membership=membership)


async def generation_of(membership):
    with anyio.fail_after(20):
        async with member(membership) as one:
            return await one.wait_generation()


def tls(**options):
    mine = authority().issue("ann@example.org")
    given = {"ssl_ca_pem": authority().pem, "ssl_certificate_pem": mine.chain}
    return Security(**{**given, "ssl_key_pem": mine.key, **options})


async def test_members_connect_with_tls(zookeeper, name):
    hosts = f"{zookeeper.secure_hosts}/{name}"
    membership = ZooKeeperMembership(hosts, security=tls())
    assert (await generation_of(membership)).members


async def test_a_server_with_an_untrusted_certificate_is_refused(zookeeper):
    """kazoo by itself would retry without end."""
    security = tls(ssl_ca_pem=Authority().pem)
    membership = ZooKeeperMembership(zookeeper.secure_hosts, security=security)
    with pytest.raises(TlsError, match=r"the server's certificate is refused.*give the CA"):
        await generation_of(membership)


async def test_a_server_with_another_host_name_is_refused(name):
    """kazoo does not check host names."""
    with LocalZooKeeper(certificate=authority().issue("zk.example.org").pem) as zookeeper:
        membership = ZooKeeperMembership(zookeeper.secure_hosts, security=tls())
        with pytest.raises(TlsError, match="names that are in it"):
            await generation_of(membership)


async def test_nodes_are_accessible_to_their_user_only(hosts):
    assert (await generation_of(ZooKeeperMembership(hosts, **ANN))).members
    for stranger in ({}, {**ANN, "username": "bob"}, {**ANN, "password": "guessed"}):
        with pytest.raises(ConfigurationError, match=r"NoAuth.*the nodes belong to another user"):
            await generation_of(ZooKeeperMembership(hosts, **stranger))


async def test_members_of_the_same_user_share_the_partitions(hosts):
    membership = ZooKeeperMembership(hosts, **ANN)
    async with member(membership, b"1") as one, member(membership, b"2") as other:
        with anyio.fail_after(20):
            # The first member learns of the second.
            while {len((await each.wait_generation()).members) for each in (one, other)} != {0, 2}:
                await anyio.sleep(0.01)


async def test_nodes_may_be_accessible_to_all(hosts):
    theirs = ZooKeeperMembership(hosts, acl=OPEN_ACL_UNSAFE, **ANN)
    async with member(theirs) as one:
        with anyio.fail_after(20):
            await one.wait_generation()
            await generation_of(ZooKeeperMembership(hosts))


async def test_no_log_shows_the_password(hosts, caplog):
    with caplog.at_level(logging.DEBUG):
        await generation_of(ZooKeeperMembership(hosts, **ANN))
    assert "Sending request" in caplog.text
    assert CANARY not in caplog.text


def test_no_repr_or_error_shows_the_password():
    membership = ZooKeeperMembership("zk:2181", **ANN)
    assert CANARY not in repr(membership)
    with pytest.raises(ConfigurationError) as caught:
        ZooKeeperMembership("zk:2181", **{**ANN, "username": "a:b"})
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    ours = "".join(str(frame.locals) for frame in shown.stack if "kafkagroup" in frame.filename)
    assert "password" in ours
    assert CANARY not in ours


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"username": "ann"}, "give both"),
        ({"password": "x"}, "give both"),
        ({"username": "ann", "password": "x"}, "readable on the network"),
        ({"username": "a:b", "password": "x", "security": Security()}, "a colon"),
        ({"sasl_mechanism": "PLAIN"}, "expected 'DIGEST-MD5', 'GSSAPI'"),
        ({"sasl_mechanism": "DIGEST-MD5"}, "needs username and password"),
        ({"sasl_mechanism": "GSSAPI", "username": "a", "password": "x"}, "GSSAPI uses neither"),
        ({"security": Security(security_protocol="PLAINTEXT")}, "expected 'SSL'"),
    ],
)
def test_contradictory_options_are_refused(puresasl, options, said):
    with pytest.raises(ConfigurationError, match=said):
        ZooKeeperMembership("zk:2181", **options)


def test_sasl_without_its_library_is_an_error():
    with pytest.raises(ConfigurationError, match="pip install pure-sasl"):
        ZooKeeperMembership("zk:2181", username="a", password="x", sasl_mechanism="DIGEST-MD5")


@pytest.fixture
def puresasl(monkeypatch):
    """Simulate that it is installed."""
    monkeypatch.setattr(access, "find_spec", lambda name: name)


def test_sasl_options_reach_kazoo(puresasl):
    membership = ZooKeeperMembership(
        "zk:2181", username="ann", password="x", sasl_mechanism="DIGEST-MD5"
    )
    options = membership._access.options(print)
    assert options["sasl_options"] == {
        "mechanism": "DIGEST-MD5",
        "username": "ann",
        "password": "x",
    }
    assert KazooClient(**options).auth_data == set()
