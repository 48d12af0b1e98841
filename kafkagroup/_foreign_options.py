"""Error messages for keywords that a constructor does not have.

For an option of another client, the message names the option or method that does its job here; for
a misspelt option, the most similar name. This module does no work unless a call is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import unwrap
from typing import Any, TypeVar, cast

from kafkagroup._hidden_values import hides_values

__all__ = ["check_keywords", "explains_unknown_options"]

Init = TypeVar("Init", bound=Callable[..., None])

_RENAMED = {
    "auto_commit_enable": "enable_auto_commit",
    "batch_num_messages": "batch_size",
    "brokers": "bootstrap_servers",
    "compression": "compression_type",
    "compression_codec": "compression_type",
    "compression_gzip_level": "compression_level",
    "compression_lz4_level": "compression_level",
    "compression_zstd_level": "compression_level",
    "consumer_group": "group_id",
    "default_api_timeout_ms": "request_timeout_ms",
    "deserializer": "value_deserializer",
    "fetch_error_backoff_ms": "retry_backoff_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "group": "group_id",
    "hosts": "bootstrap_servers",
    "max_batch_size": "batch_size",
    "max_block_ms": "delivery_timeout_ms",
    "message_max_bytes": "max_request_size",
    "message_send_max_retries": "delivery_timeout_ms",
    "message_timeout_ms": "delivery_timeout_ms",
    "metadata_broker_list": "bootstrap_servers",
    "metadata_cluster_check_enable": "on_cluster_change",
    "offsets_channel_backoff_ms": "retry_backoff_ms",
    "partition_assignment_strategy": "assignors",
    "partitioner_class": "partitioner",
    "partitioner_ignore_keys": "partitioner",
    "queue_buffering_max_kbytes": "buffer_memory",
    "queue_buffering_max_messages": "buffer_memory",
    "queue_buffering_max_ms": "linger_ms",
    "queued_max_messages_kbytes": "fetch_max_bytes",
    "rebalance_backoff_ms": "retry_backoff_ms",
    "receive_message_max_bytes": "max_frame_bytes",
    "reconnect_backoff_max_ms": "retry_backoff_max_ms",
    "reconnect_backoff_ms": "retry_backoff_ms",
    "request_required_acks": "acks",
    "retries": "delivery_timeout_ms",
    "socket_timeout_ms": "request_timeout_ms",
    "topic_metadata_refresh_interval_ms": "metadata_max_age_ms",
}
"""Another client's option -> the option here."""

_UNITS = {
    "batch_num_messages": "bytes",
    "message_send_max_retries": "milliseconds",
    "queue_buffering_max_kbytes": "bytes",
    "queue_buffering_max_messages": "bytes",
    "queued_max_messages_kbytes": "bytes",
    "retries": "milliseconds",
}
"""Those of `_RENAMED` whose value has another unit -> the unit of the option here."""

_SECURITY = {
    "ca_location": "ssl_ca_location",
    "cafile": "ssl_ca_location",
    "certfile": "ssl_certificate_location",
    "enable_ssl_certificate_verification": "enable_ssl_certificate_verification",
    "keyfile": "ssl_key_location",
    "mechanism": "sasl_mechanism",
    "oauth_cb": "sasl_oauthbearer_token",
    "password": "sasl_password",
    "protocol": "security_protocol",
    "sasl_jaas_config": "sasl_username",
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_oauth_token_provider": "sasl_oauthbearer_token",
    "sasl_plain_password": "sasl_password",
    "sasl_plain_username": "sasl_username",
    "ssl_cafile": "ssl_ca_location",
    "ssl_certfile": "ssl_certificate_location",
    "ssl_check_hostname": "ssl_endpoint_identification_algorithm",
    "ssl_ciphers": "ssl_context",
    "ssl_crlfile": "ssl_context",
    "ssl_keyfile": "ssl_key_location",
    "ssl_keystore_certificate_chain": "ssl_certificate_pem",
    "ssl_keystore_key": "ssl_key_pem",
    "ssl_keystore_location": "ssl_certificate_location",
    "ssl_password": "ssl_key_password",
    "ssl_truststore_certificates": "ssl_ca_pem",
    "ssl_truststore_location": "ssl_ca_location",
    "username": "sasl_username",
}
"""Another client's TLS or SASL option -> the argument of `Security`, if its name differs."""

_NO_KERBEROS = (
    "there is no GSSAPI; security=Security(sasl_mechanism=...) takes a mechanism of your own"
)
_SYSTEM = "there is nothing to set: the system's default is used"
_METRICS = "metrics() returns the figures, and kafkagroup.exporters exports them"
_QUEUED = "fetch_max_bytes limits what is buffered, in bytes"
_OF_PRODUCER = "it is an option of Producer"
_LOGGERS = "the loggers are named after modules: logging.getLogger('kafkagroup')"
_VERSIONS = "there is nothing to set: versions are negotiated with each broker"
_RESULTS = "await send(), or what send_nowait() returns"
_ADAPTIVE = "partitions with less to send get more of the records without a key"

_ANSWERS = {
    "acks": _OF_PRODUCER,
    "allow_auto_create_topics": "a request for a topic never creates it",
    "api_version": _VERSIONS,
    "api_version_auto_timeout_ms": "there is nothing to set: see request_timeout_ms",
    "api_version_request": _VERSIONS,
    "batch_size": _OF_PRODUCER,
    "bootstrap_timeout_ms": "see request_timeout_ms and retry_backoff_ms",
    "client_dns_lookup": "every address that a name has is tried in turn",
    "consumer_timeout_ms": "pass timeout to getmany(), or use getone() within anyio.fail_after()",
    "debug": _LOGGERS,
    "default_offset_commit_callback": "await commit(), or read events() and metrics()",
    "delivery_report_only_error": _RESULTS,
    "dr_cb": _RESULTS,
    "enable_auto_offset_store": "a record counts as processed when you ask for the next one",
    "enable_gapless_guarantee": "the records of a partition are written in order, or fail",
    "enable_idempotence": _OF_PRODUCER,
    "enable_incremental_fetch_sessions": "they are used where the broker has them",
    "enable_metrics_push": _METRICS,
    "enable_partition_eof": "compare position() with end_offsets()",
    "error_cb": "errors are raised by the call that they concern",
    "interceptor_classes": "there are no interceptors: wrap the calls",
    "kafka_client": "each client has its own connections",
    "key_serializer": _OF_PRODUCER,
    "linger_ms": _OF_PRODUCER,
    "log_level": _LOGGERS,
    "logger": _LOGGERS,
    "loop": "the running event loop is used",
    "max_in_flight": "there is nothing to set",
    "max_in_flight_requests_per_connection": "there is nothing to set",
    "max_poll_records": "pass max_records to getmany() or batches()",
    "max_request_size": _OF_PRODUCER,
    "metadata_recovery_strategy": "the bootstrap addresses are always asked again",
    "metric_group_prefix": _METRICS,
    "metric_reporters": _METRICS,
    "metrics_enabled": _METRICS,
    "metrics_num_samples": _METRICS,
    "metrics_sample_window_ms": _METRICS,
    "num_consumer_fetchers": "one connection to each broker fetches, and a second one at need",
    "offsets_commit_max_retries": "a commit is retried until request_timeout_ms expires",
    "on_commit": "await commit(), or read events() and metrics()",
    "on_delivery": _RESULTS,
    "partitioner": _OF_PRODUCER,
    "partitioner_adaptive_partitioning_enable": _ADAPTIVE,
    "partitioner_availability_timeout_ms": _ADAPTIVE,
    "proxy_url": "there are no proxies",
    "queue_buffering_backpressure_threshold": "there is nothing to set: see linger_ms",
    "queued_max_messages": _QUEUED,
    "queued_max_records": _QUEUED,
    "queued_min_messages": _QUEUED,
    "rebalance_listener": "give on_partitions_assigned, on_partitions_revoked, on_partitions_lost",
    "rebalance_max_retries": "joining is retried without limit, and health() tells why it fails",
    "receive_buffer_bytes": _SYSTEM,
    "receive_message_max_bytes": "there is nothing to set",
    "sasl_kerberos_domain_name": _NO_KERBEROS,
    "sasl_kerberos_name": _NO_KERBEROS,
    "sasl_kerberos_service_name": _NO_KERBEROS,
    "selector": "the running event loop is used",
    "send_buffer_bytes": _SYSTEM,
    "socket_keepalive_enable": "it is always on",
    "socket_nagle_disable": "TCP_NODELAY is always set",
    "socket_options": _SYSTEM,
    "socket_receive_buffer_bytes": _SYSTEM,
    "socket_send_buffer_bytes": _SYSTEM,
    "socks5_proxy": "there are no proxies",
    "statistics_interval_ms": _METRICS,
    "stats_cb": _METRICS,
    "sticky_partitioning_linger_ms": _ADAPTIVE,
    "throttle_cb": "the client waits as long as the broker asks (KIP-219)",
    "topic": "topics are positional arguments",
    "topic_blacklist": "pattern takes a regular expression, which can exclude names",
    "topics": "topics are positional arguments",
    "transaction_timeout_ms": _OF_PRODUCER,
    "transaction_two_phase_commit_enable": "there is no two-phase commit",
    "transactional_id": _OF_PRODUCER,
    "value_serializer": _OF_PRODUCER,
}
"""Another client's option -> what to use instead, if no option here does the same."""

_OF_CONSUMERS = frozenset(
    (
        "allow_auto_create_topics",
        "consumer_timeout_ms",
        "default_offset_commit_callback",
        "enable_auto_offset_store",
        "enable_incremental_fetch_sessions",
        "enable_partition_eof",
        "max_poll_records",
        "num_consumer_fetchers",
        "offsets_commit_max_retries",
        "on_commit",
        "queued_max_messages",
        "queued_max_records",
        "queued_min_messages",
        "rebalance_listener",
        "topic",
        "topic_blacklist",
        "topics",
    )
)
"""The options whose answers are true of `Consumer` only."""


def explains_unknown_options(init: Init, more: Collection[str] = ()) -> Init:
    """Decorate a constructor: its error for an unknown keyword names what to write instead. `more`:
    the keywords that it takes as `**options`.

    The signature does not change: type checkers still refuse an unknown keyword.
    """
    code = unwrap(init).__code__
    names = (*code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount], *more)

    @hides_values
    @wraps(init)
    def checked(self: object, *args: Any, **options: Any) -> None:
        check_keywords(type(self).__name__, names, args, options)
        init(self, *args, **options)

    return cast(Init, checked)


def check_keywords(
    client: str, names: Collection[str], args: Iterable[object], options: Iterable[str]
) -> None:
    """Check the arguments of a constructor. `client`: the name of its class; `names`: the keywords
    that it takes. Raises: TypeError for another keyword, and for options that are passed as a
    mapping."""
    for given in args:
        if isinstance(given, Mapping):
            # The message shows no values: one may be a password.
            raise TypeError(
                f"{client}() takes options as keyword arguments, not as a mapping"
                f"{_answers(map(str, given), names)}"
            )
    unknown = [name for name in options if name not in names]
    if unknown:
        raise TypeError(f"{client}() has no option {', '.join(unknown)}{_answers(unknown, names)}")


def _answers(unknown: Iterable[str], names: Collection[str]) -> str:
    found = (_answer(name, names) for name in unknown)
    return "".join(f"; {answer}" for answer in dict.fromkeys(found) if answer)


def _answer(name: str, names: Collection[str]) -> str | None:
    """Return what to write instead; None if no known name resembles this one."""
    from difflib import get_close_matches

    option = re.sub("[.-]", "_", name.lower())
    if option in names:  # in another spelling; or in a mapping that is refused as a whole
        return None if name == option else f"{name} is {option}"
    for ours in (_RENAMED.get(option), _SECURITY.get(option)):
        if ours in names:
            unit = f", in {_UNITS[option]}" if option in _UNITS else ""
            return f"{name} is {ours} here{unit}"
    is_security = option in _SECURITY or option.startswith(("security_", "ssl_", "sasl_"))
    # `Security` itself has no keyword `security`, and none of the clients' options.
    takes_security = "security" in names
    if option in _ANSWERS and (takes_security or is_security) and _holds(option, names):
        return f"{name}: {_ANSWERS[option]}"
    if is_security and takes_security:
        return f"{name} is security=kafkagroup.Security({_SECURITY.get(option, option)}=...)"
    # The most similar name, if it differs by few letters only: 0.8 of 1.
    near = get_close_matches(option, names, 1, 0.8)
    return f"did you mean {near[0]}?" if near else None


def _holds(option: str, names: Collection[str]) -> bool:
    """Return whether the answer for an option is true of the client that takes these keywords."""
    if option in _OF_CONSUMERS:
        return "enable_auto_commit" in names
    # `Admin` has no metrics. Producers, which take `linger_ms`, and members of groups have.
    return _ANSWERS[option] != _METRICS or "linger_ms" in names or "group_id" in names
