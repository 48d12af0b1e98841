"""The options of Kafka's own clients that this library does not implement: those without effect,
and those that are refused because a query without their effect would give another result. Pure.

Sources: `ConsumerConfig`, `ProducerConfig` and `AdminClientConfig` of Kafka 2.4 to 4.3, and Spark's
Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSED_BY_SINK", "REFUSED_BY_SOURCE", "WITHOUT_EFFECT"]

_NO_MEMBER = "the source is no member of the group"
_NO_CONSUMER = "the source has no consumer of Kafka's"
_FRESH = "each batch is planned with new metadata"
_DELIVERY = "see delivery.timeout.ms"
_ONE_PARTITION = "each fetch is of one partition: max.partition.fetch.bytes limits it"
_SYSTEM = "the system's default is used"
_TLS = "OpenSSL chooses it"
_PROVIDERS = "they are not asked: give each option its value"
_TOKENS = "no option carries a token of OAUTHBEARER: use another mechanism"
_JAVA = "it is a class of Java, which this library cannot call"
_JAVA_STORE = (
    "Java's key stores are not read: export them as PEM, and give ssl.ca.location,"
    " ssl.certificate.location and ssl.key.location"
)

WITHOUT_EFFECT: Mapping[str, str] = {
    "allow.auto.create.topics": "",
    "auto.commit.interval.ms": "each batch is committed",
    "auto.include.jmx.reporter": "",
    "bootstrap.controllers": "",
    "client.dns.lookup": "each address of a name is tried in turn",
    "enable.metrics.push": "",
    "exclude.internal.topics": "a pattern never selects internal topics",
    "fetch.max.bytes": _ONE_PARTITION,
    "fetch.max.wait.ms": "",
    "fetch.min.bytes": "",
    "fetchOffset.numRetries": "see default.api.timeout.ms",
    "fetchOffset.retryIntervalMs": "see default.api.timeout.ms",
    "group.instance.id": _NO_MEMBER,
    "group.protocol": _NO_MEMBER,
    "group.remote.assignor": _NO_MEMBER,
    "groupIdPrefix": _NO_CONSUMER,
    "heartbeat.interval.ms": _NO_MEMBER,
    "includeHeaders": "the sink writes the column headers if there is one",
    "internal.leave.group.on.close": _NO_MEMBER,
    "internal.throw.on.fetch.stable.offset.unsupported": "",
    "kafkaConsumer.pollTimeoutMs": _NO_CONSUMER,
    "linger.ms": "a batch is sent when it is full, or when the task has no more rows",
    "max.block.ms": _DELIVERY,
    "max.in.flight.requests.per.connection": "up to five are in flight, and keep their order",
    "max.poll.interval.ms": _NO_MEMBER,
    "max.poll.records": _NO_CONSUMER,
    "metadata.max.idle.ms": _FRESH,
    "metadata.recovery.strategy": "the bootstrap addresses are always asked again",
    "metric.reporters": "",
    "metrics.num.samples": "",
    "metrics.recording.level": "",
    "metrics.sample.window.ms": "",
    "partition.assignment.strategy": _NO_MEMBER,
    "partitioner.adaptive.partitioning.enable": "a batch without keys goes to any partition",
    "partitioner.availability.timeout.ms": "",
    "receive.buffer.bytes": _SYSTEM,
    "reconnect.backoff.max.ms": "",
    "reconnect.backoff.ms": "",
    "retries": _DELIVERY,
    "sasl.kerberos.kinit.cmd": "",
    "sasl.kerberos.min.time.before.relogin": "",
    "sasl.kerberos.service.name": "",
    "sasl.kerberos.ticket.renew.jitter": "",
    "sasl.kerberos.ticket.renew.window.factor": "",
    "sasl.login.connect.timeout.ms": "",
    "sasl.login.read.timeout.ms": "",
    "sasl.login.refresh.buffer.seconds": "",
    "sasl.login.refresh.min.period.seconds": "",
    "sasl.login.refresh.window.factor": "",
    "sasl.login.refresh.window.jitter": "",
    "sasl.login.retry.backoff.max.ms": "",
    "sasl.login.retry.backoff.ms": "",
    "security.providers": "",
    "send.buffer.bytes": _SYSTEM,
    "session.timeout.ms": _NO_MEMBER,
    "share.acknowledgement.mode": _NO_MEMBER,
    "share.acquire.mode": _NO_MEMBER,
    "socket.connection.setup.timeout.max.ms": "",
    "socket.connection.setup.timeout.ms": "",
    "ssl.cipher.suites": _TLS,
    "ssl.enabled.protocols": _TLS,
    "ssl.keymanager.algorithm": "",
    "ssl.keystore.password": "a key in PEM has ssl.key.password",
    "ssl.keystore.type": "",
    "ssl.protocol": _TLS,
    "ssl.provider": "",
    "ssl.secure.random.implementation": "",
    "ssl.trustmanager.algorithm": "",
    "ssl.truststore.password": "certificates in PEM have none",
    "ssl.truststore.type": "",
    "transaction.timeout.ms": "the sink writes without transactions",
    "transaction.two.phase.commit.enable": "the sink writes without transactions",
}
"""Option -> why it has no effect, or what to use instead; "" if no reason is given."""

_REFUSED = {
    "config.providers": _PROVIDERS,
    "config.providers.": _PROVIDERS,
    "sasl.client.callback.handler.class": _JAVA,
    "sasl.login.callback.handler.class": _JAVA,
    "sasl.login.class": _JAVA,
    "sasl.oauthbearer.": _TOKENS,
    "ssl.engine.factory.class": _JAVA,
    "ssl.keystore.location": _JAVA_STORE,
    "ssl.truststore.location": _JAVA_STORE,
}

_INTERCEPTORS = f"{_JAVA}, and it may change the records"
_KEYS = "keys are bytes: convert the column key"
_VALUES = "values are bytes: convert the column value"
_PARTITIONS = "give the partition of each row in the column partition"

_OF_CONSUMERS = {
    "auto.offset.reset": "startingOffsets says where a query begins",
    "enable.auto.commit": "the option commit says what commits the offsets to group.id",
    "key.deserializer": _KEYS,
    "value.deserializer": _VALUES,
}
_OF_PRODUCERS = {
    "key.serializer": _KEYS,
    "partitioner.class": f"{_JAVA}; {_PARTITIONS}",
    "partitioner.ignore.keys": _PARTITIONS,
    "transactional.id": "the sink writes at least once, without transactions",
    "value.serializer": _VALUES,
}

REFUSED_BY_SOURCE: Mapping[str, str] = {
    **_REFUSED,
    "interceptor.classes": _INTERCEPTORS,
    **_OF_CONSUMERS,
}
"""Option, or a prefix of options, which ends with a dot -> why a source refuses it. Options that
only producers have are ignored."""
REFUSED_BY_SINK: Mapping[str, str] = {
    **_REFUSED,
    "interceptor.classes": _INTERCEPTORS,
    **_OF_PRODUCERS,
}
"""Option, or a prefix of options, which ends with a dot -> why a sink refuses it. Options that only
consumers have are ignored."""
