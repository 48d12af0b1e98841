"""`examine` of healthy clusters, and of those with one fault; real and embedded."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import anyio
import attrs
import pytest
from anyio.to_thread import run_sync
from brokers import Worker, until
from certificates import Authority, authority
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kafkagroup import Security
from kafkagroup.admin.doctor import Finding, Status, clock, examine
from kafkagroup.admin.doctor.releases import lacking, release
from kafkagroup.errors import ConfigurationError, ErrorCode
from kafkagroup.testing import EmbeddedKafka, Listener, LocalKafka
from kafkagroup.testing._jars import LocalKafkaUnavailable
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    MetadataRequest,
)

pytestmark = pytest.mark.anyio

USERS = {"ann": "ann's", "bob": "bob's"}
GOOD = authority().issue()
NOWHERE = 1
"""A port without a listener."""


@attrs.frozen
class Listeners:
    """The addresses of one kind of broker."""

    bare: str
    tls: str
    expired: str
    sasl: str
    """SASL_SSL."""
    astray: str
    """Brokers that advertise an address without a listener."""
    tells_time: bool


@pytest.fixture(scope="module")
def real() -> Iterator[LocalKafka]:
    kafka = LocalKafka(
        listeners={
            "TLS": Listener(certificate=GOOD.pem),
            "EXPIRED": Listener(certificate=authority().issue(expired=True).pem),
            "SASL": Listener(certificate=GOOD.pem, mechanisms=("SCRAM-SHA-256",)),
            "ASTRAY": Listener(advertised_ports=(NOWHERE,)),
        },
        users=USERS,
        config={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:ann",
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    try:
        kafka.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka on this machine: {error}")
    yield kafka
    kafka.stop()


@pytest.fixture
def embedded_listeners(tmp_path: Path) -> Iterator[Listeners]:
    def context(expired: bool = False) -> object:
        certificate = authority().issue(expired=True) if expired else GOOD
        return authority().server_context(certificate, tmp_path)

    astray = EmbeddedKafka()
    with (
        EmbeddedKafka() as bare,
        EmbeddedKafka(tls=context()) as tls,
        EmbeddedKafka(tls=context(expired=True)) as expired,
        EmbeddedKafka({"t": 2}, tls=context(), users=USERS) as sasl,
        astray,
    ):
        address = astray.bootstrap_servers
        astray._cluster.nodes[1].port = NOWHERE
        yield Listeners(
            bare.bootstrap_servers,
            tls.bootstrap_servers,
            expired.bootstrap_servers,
            sasl.bootstrap_servers,
            address,
            tells_time=False,
        )


@pytest.fixture(params=["embedded", "kafka"])
def listeners(request: pytest.FixtureRequest) -> Listeners:
    if request.param == "embedded":
        return request.getfixturevalue("embedded_listeners")
    kafka: LocalKafka = request.getfixturevalue("real")
    of = kafka.bootstrap_servers_of
    return Listeners(
        kafka.bootstrap_servers, of("TLS"), of("EXPIRED"), of("SASL"), of("ASTRAY"), tells_time=True
    )


def trusting(**more: str) -> Security:
    return Security(ssl_ca_pem=authority().pem, **more)


def scram(user: str, password: str | None = None) -> Security:
    return trusting(
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username=user,
        sasl_password=USERS[user] if password is None else password,
    )


async def findings(servers: str, security: Security | None = None, **what: object) -> list[Finding]:
    with anyio.fail_after(60):
        return [
            finding async for finding in examine(servers, security=security, timeout=5.0, **what)
        ]


def statuses(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.check, finding.status.value) for finding in found]


def the_failed(found: list[Finding]) -> Finding:
    """Return the only failed finding; check that it has a remedy."""
    (finding,) = [one for one in found if one.status is Status.FAILED]
    assert finding.advice
    return finding


async def test_a_healthy_sasl_ssl_cluster_has_no_findings(listeners: Listeners) -> None:
    found = await findings(listeners.sasl, scram("ann"))
    texts = {finding.check: finding.text for finding in found}
    assert statuses(found)[:-1] == [
        ("name", "ok"),
        ("connection", "ok"),
        ("TLS", "ok"),
        ("API versions", "ok"),
        ("SASL", "ok"),
        ("cluster", "ok"),
        ("advertised address", "ok"),
        ("clock", "ok" if listeners.tells_time else "not checked"),
    ]
    assert found[-1].check == "offsets topic"
    assert found[-1].status in (Status.OK, Status.WARNING)
    assert texts["TLS"].startswith("TLSv1.3; the certificate is for 127.0.0.1 and valid until ")
    assert texts["API versions"] == "as of Kafka 4.1 or later, with groups of KIP-848"
    assert texts["SASL"] == "authenticated by SCRAM-SHA-256 as ann"
    assert texts["cluster"].endswith(" of 1 broker")


@pytest.mark.parametrize(
    ("ahead", "status"), [(0.0, "ok"), (3600.0, "warning"), (-60.0, "warning")]
)
async def test_clock_skew_is_reported(
    real: LocalKafka, monkeypatch: pytest.MonkeyPatch, ahead: float, status: str
) -> None:
    """This machine's clock is moved, not the cluster's."""
    theirs = time.time
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=lambda: theirs() + ahead))
    found = await findings(real.bootstrap_servers_of("SASL"), scram("ann"))
    (finding,) = [one for one in found if one.check == "clock"]
    assert finding.status.value == status
    way = "behind" if ahead > 0 else "ahead of"
    if ahead:
        measured = re.fullmatch(
            rf"the cluster's clock is (\d+\.\d) s {way} this machine's", finding.text
        )
        assert measured is not None
        # Off by as much as half the round trip of the request, on a busy machine by tenths.
        assert float(measured[1]) == pytest.approx(abs(ahead), abs=2.0)
        assert finding.advice.startswith("set both by NTP")


async def test_a_healthy_group_and_topic_have_no_findings(real: LocalKafka) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    await run_sync(create, real, name)
    worker = Worker(real.bootstrap_servers, name)
    async with worker.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await until(lambda: worker.owns == [0, 1])
        servers = real.bootstrap_servers_of("SASL")
        found = await findings(servers, scram("ann"), groups=[name], topics=[name])
        await worker.consumer.stop()
    about = [(one.check, one.status.value, one.text) for one in found if one.subject == name]
    assert about == [
        ("coordinator", "ok", f"broker 1 at {servers}"),
        ("group", "ok", "classic, Stable, 1 member"),
        ("committed offsets", "ok", "can be read; there are 0"),
        ("joining", "ok", "is allowed"),
        ("topic", "ok", "2 partitions, all in sync"),
        ("reading", "ok", "is allowed"),
        ("last stable offset", "ok", "no open transaction"),
    ]
    offsets_topic = next(one for one in found if one.check == "offsets topic")
    assert offsets_topic.text == "3 partitions, all with a leader"
    # Nothing was made by looking.
    assert statuses(await findings(servers, scram("ann"), groups=["none"], topics=["none"]))[
        -5:
    ] == [
        ("coordinator", "ok"),
        ("group", "warning"),
        ("committed offsets", "ok"),
        ("joining", "ok"),
        ("topic", "failed"),
    ]


def create(kafka: LocalKafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(20)


async def test_a_closed_port_is_reported() -> None:
    found = await findings(f"127.0.0.1:{NOWHERE}", groups=["g"], topics=["t"])
    assert statuses(found) == [
        ("name", "ok"),
        ("connection", "failed"),
        ("cluster", "not checked"),
        ("group", "not checked"),
        ("topic", "not checked"),
    ]
    assert the_failed(found).text == "Connection refused"


async def test_an_unknown_host_is_reported() -> None:
    failed = the_failed(await findings("kafka.invalid:9092"))
    assert (failed.check, failed.subject) == ("name", "kafka.invalid:9092")


async def test_one_reachable_bootstrap_server_is_enough(listeners: Listeners) -> None:
    found = await findings(f"127.0.0.1:{NOWHERE},{listeners.bare}")
    assert the_failed(found).subject == f"127.0.0.1:{NOWHERE}"
    assert ("cluster", "ok") in statuses(found)


async def test_a_plaintext_client_at_a_tls_port_is_reported(listeners: Listeners) -> None:
    failed = the_failed(await findings(listeners.tls))
    assert failed.check == "API versions"
    assert "TLS" in failed.text + failed.advice


async def test_a_tls_client_at_a_plaintext_port_is_reported(listeners: Listeners) -> None:
    failed = the_failed(await findings(listeners.bare, trusting()))
    assert failed.check == "TLS"
    assert failed.advice.startswith("is this the port of a TLS listener?")


async def test_a_wrong_ca_is_reported(listeners: Listeners) -> None:
    failed = the_failed(await findings(listeners.tls, Security(ssl_ca_pem=Authority().pem)))
    assert (failed.check, "certificate" in failed.text) == ("TLS", True)
    assert "ssl_ca_location" in failed.advice


async def test_an_expired_certificate_is_reported(listeners: Listeners) -> None:
    failed = the_failed(await findings(listeners.expired, trusting()))
    assert (failed.check, "expired" in failed.text) == ("TLS", True)


async def test_a_wrong_password_is_reported(listeners: Listeners) -> None:
    found = await findings(listeners.sasl, scram("ann", "canary"))
    failed = the_failed(found)
    assert (failed.check, "ok") not in statuses(found)
    assert failed.check == "SASL"
    assert "canary" not in str(failed)


async def test_missing_sasl_is_reported(listeners: Listeners) -> None:
    failed = the_failed(await findings(listeners.sasl, trusting()))
    assert "SASL" in failed.text + failed.advice + failed.check


async def test_an_unreachable_advertised_address_is_reported(listeners: Listeners) -> None:
    """The bootstrap address works, and the address that it advertises does not."""
    found = await findings(listeners.astray)
    failed = the_failed(found)
    assert (failed.check, failed.subject) == ("advertised address", "broker 1")
    assert failed.text.startswith(
        f"it sends clients to 127.0.0.1:{NOWHERE}, where connection failed: "
    )
    assert failed.advice.startswith("set advertised.listeners of that broker")
    assert statuses(found)[:2] == [("name", "ok"), ("connection", "ok")]


async def test_a_loading_coordinator_is_no_finding() -> None:
    async with EmbeddedKafka() as kafka:
        kafka.fail(FindCoordinatorRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=2)
        found = await findings(kafka.bootstrap_servers, groups=["g"])
    assert ("coordinator", "ok") in statuses(found)


async def test_an_outdated_broker_is_reported() -> None:
    old = ApiVersionsResponse(
        error_code=0,
        api_keys=(
            ApiVersion(api_key=FetchRequest.api_key, min_version=0, max_version=3),
            ApiVersion(api_key=MetadataRequest.api_key, min_version=0, max_version=12),
        ),
    )
    missing = lacking(old)
    assert "Fetch" in missing
    assert "JoinGroup" in missing
    assert "Metadata" not in missing
    assert release(old) == "as of Kafka 2.2 or older, without groups of KIP-848"


async def test_permissions_that_acls_deny_are_reported(real: LocalKafka) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    await run_sync(create, real, name)
    admin = AdminClient({"bootstrap.servers": real.bootstrap_servers})

    def allow(user: str, kind: ResourceType, operation: AclOperation) -> None:
        literal, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        binding = AclBinding(kind, name, literal, f"User:{user}", "*", operation, allowed)
        admin.create_acls([binding])[binding].result(20)

    servers = real.bootstrap_servers_of("SASL")

    async def denied_to_bob() -> dict[str, str]:
        found = await findings(servers, scram("bob"), groups=[name], topics=[name])
        return {one.check: one.advice for one in found if one.status is Status.FAILED}

    def advice(operation: str, resource: str) -> str:
        return (
            "allow it: kafka-acls --add --allow-principal User:bob"
            f" --operation {operation} --{resource} {name}"
        )

    assert await denied_to_bob() == {}
    await run_sync(allow, "ann", ResourceType.GROUP, AclOperation.ALL)
    await run_sync(allow, "ann", ResourceType.TOPIC, AclOperation.ALL)
    assert await denied_to_bob() == {
        "coordinator": advice("Describe", "group"),
        "topic": advice("Describe", "topic"),
    }
    await run_sync(allow, "bob", ResourceType.GROUP, AclOperation.DESCRIBE)
    await run_sync(allow, "bob", ResourceType.TOPIC, AclOperation.DESCRIBE)
    assert await denied_to_bob() == {
        "joining": advice("Read", "group"),
        "reading": advice("Read", "topic"),
    }
    await run_sync(allow, "bob", ResourceType.GROUP, AclOperation.READ)
    await run_sync(allow, "bob", ResourceType.TOPIC, AclOperation.READ)
    assert await denied_to_bob() == {}


async def test_disabled_verification_is_reported(listeners: Listeners) -> None:
    with pytest.warns(UserWarning, match="not verified"):
        lax = Security(enable_ssl_certificate_verification=False)
    found = await findings(listeners.tls, lax)
    assert ("TLS", "warning") in statuses(found)


async def test_invalid_input_is_an_error() -> None:
    for given in ({"timeout": 0}, {"bootstrap_servers": ""}, {"groups": "g"}, {"topics": "t"}):
        with pytest.raises(ConfigurationError):
            await anext(examine(**{"bootstrap_servers": "a:1", **given}))
