"""Options: declared signatures, defaults in seconds, and the error for each invalid value."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from kafkagroup import Admin, Consumer, GroupMember, GroupProtocol, Producer
from kafkagroup._option_kinds import declared, takes_options
from kafkagroup._values import REQUIRED
from kafkagroup.assign import cooperative_sticky_assignor, range_assignor, roundrobin_assignor
from kafkagroup.broker import ClientOptions
from kafkagroup.consume.subscription import checked_pattern, server_pattern
from kafkagroup.coordination import MemberOptions
from kafkagroup.errors import ConfigurationError
from kafkagroup.member.config import MemberConfig
from kafkagroup.options import (
    AdminOptions,
    CommonOptions,
    ConsumerOptions,
    ConsumerProtocol,
    GroupMemberOptions,
    ProducerOptions,
)
from kafkagroup.runtime.client.connection_options import connection_options
from kafkagroup.runtime.member.members import member_config

DEFAULTS = {name: option.default for name, option in declared(ConsumerOptions).items()}
MAX_INT32 = 2**31 - 1


def checked(**changes: Any) -> ConsumerOptions:
    return ConsumerOptions.checked({**DEFAULTS, "group_id": "g", **changes})


def test_a_constructor_may_have_optional_parameters_that_are_no_options() -> None:
    class Client:
        @takes_options(AdminOptions)
        def __init__(
            self,
            name: str,
            size: int = 3,
            *topics: str,
            bootstrap_servers: str = "localhost:9092",
            label: str = "none",
        ) -> None: ...

        def _set_up(self, options: AdminOptions, *others: object) -> None:
            self.others = others

    assert Client("a").others == ("a", 3, "none")
    assert Client("a", 4, "t", label="b").others == ("a", 4, "b", "t")
    assert Client(name="a", size=5).others == ("a", 5, "none")


_STRING = "a string of at most 32767 bytes of UTF-8"


@pytest.mark.parametrize(
    ("client", "options"),
    [
        (Consumer, ConsumerOptions),
        (GroupMember, GroupMemberOptions),
        (Admin, AdminOptions),
        (Producer, ProducerOptions),
    ],
)
def test_a_signature_has_the_declared_options(
    client: Callable[..., object], options: type[CommonOptions]
) -> None:
    signature = {
        name: (parameter.annotation, parameter.default)
        for name, parameter in inspect.signature(client).parameters.items()
        if name not in ("topics", "protocols")
    }
    assert signature == {
        name: (
            option.annotation,
            inspect.Parameter.empty if option.default is REQUIRED else option.default,
        )
        for name, option in declared(options).items()
    }


def test_options_passed_to_a_member_have_its_types() -> None:
    options = {
        name: option.annotation
        for name, option in declared(GroupMemberOptions).items()
        if name != "group_id"
    }
    given = {name: kind.__forward_arg__ for name, kind in MemberOptions.__annotations__.items()}
    assert given == options


@pytest.mark.parametrize(
    "options", [ConsumerOptions, GroupMemberOptions, AdminOptions, ProducerOptions]
)
def test_every_option_has_a_text_and_a_valid_default(
    options: type[CommonOptions],
) -> None:
    """The default shown in the documentation is accepted."""
    given = {name: option.default for name, option in declared(options).items()}
    given |= {name: "g" for name, default in given.items() if default is REQUIRED}
    options.checked(given)
    assert [name for name, option in declared(options).items() if not option.text] == []


def test_the_defaults_in_seconds() -> None:
    assert checked() == ConsumerOptions(
        group_id="g",
        group_instance_id=None,
        bootstrap_servers="localhost:9092",
        client_id="kafkagroup",
        security=None,
        membership=None,
        on_cluster_change="raise",
        metadata_recovery_rebootstrap_trigger=300.0,
        connections_max_idle=540.0,
        pattern=None,
        exclude_internal_topics=True,
        on_partitions_assigned=None,
        on_partitions_revoked=None,
        on_partitions_lost=None,
        views=False,
        key_deserializer=None,
        value_deserializer=None,
        on_deserialization_error="raise",
        group_protocol=ConsumerProtocol.CLASSIC,
        group_remote_assignor=None,
        assignors=(range_assignor, cooperative_sticky_assignor, roundrobin_assignor),
        partition_loads=None,
        auto_offset_reset="earliest",
        auto_offset_reset_new_partitions="earliest",
        enable_auto_commit=True,
        auto_commit_interval=5.0,
        committed_offsets_max_age=60.0,
        offsets_commit_max_retries=None,
        offsets_channel_backoff=0.1,
        leave_group_on_close=None,
        session_timeout=45.0,
        heartbeat_interval=1.0,
        heartbeat_thread=False,
        rebalance_timeout=300.0,
        rebalance_max_retries=None,
        rebalance_backoff=0.1,
        max_poll_interval=300.0,
        fetch_min_bytes=1,
        fetch_max_bytes=52_428_800,
        max_partition_fetch_bytes=1_048_576,
        fetch_max_wait=0.5,
        num_consumer_fetchers=1,
        queued_max_records=MAX_INT32,
        isolation_level=0,
        check_crcs=True,
        max_batch_bytes=134_217_728,
        max_frame_bytes=104_857_600,
        client_rack=None,
        metadata_max_age=300.0,
        retry_backoff=0.1,
        retry_backoff_max=1.0,
        request_timeout=30.0,
        close_timeout=10.0,
    )


def test_members_and_connections_have_the_same_defaults() -> None:
    """Each is also made without options: by `Broker`, and in tests."""
    given = {name: option.default for name, option in declared(GroupMemberOptions).items()}
    options = GroupMemberOptions.checked({**given, "group_id": "g"})
    config = MemberConfig(group_id="g", client_id="kafkagroup")
    assert member_config(options, "consumer") == config
    connecting = connection_options(options, "")
    assert connecting == ClientOptions(run_in_thread=connecting.run_in_thread)


def test_given_options_are_used() -> None:
    options = checked(
        group_id=None,
        assignors=[roundrobin_assignor],
        auto_offset_reset=timedelta(hours=1),
        session_timeout_ms=6_000,
        heartbeat_interval_ms=2_000,
        rebalance_timeout_ms=7_000,
        fetch_min_bytes=0,
        fetch_max_wait_ms=0,
        retry_backoff_ms=1_000,
        close_timeout=0,
    )
    assert (
        options.group_id,
        options.assignors,
        options.auto_offset_reset,
        options.session_timeout,
        options.heartbeat_interval,
        options.rebalance_timeout,
        options.fetch_min_bytes,
        options.fetch_max_wait,
        options.retry_backoff,
        options.close_timeout,
    ) == (None, (roundrobin_assignor,), timedelta(hours=1), 6.0, 2.0, 7.0, 0, 0.0, 1.0, 0)


def test_reconnect_backoffs_default_to_the_retry_backoffs() -> None:
    same = checked(retry_backoff_ms=250)
    assert (same.rebalance_backoff, same.offsets_channel_backoff) == (0.25, 0.25)
    own = checked(rebalance_backoff_ms=2_000, offsets_channel_backoff_ms=500)
    assert (own.rebalance_backoff, own.offsets_channel_backoff) == (2.0, 0.5)
    assert own.retry_backoff == 0.1


def test_the_rebalance_timeout_follows_max_poll_interval() -> None:
    assert checked(max_poll_interval_ms=9_000).rebalance_timeout == 9.0


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("auto_commit_interval_ms", 1),
        ("offsets_commit_max_retries", 0),
        ("offsets_channel_backoff_ms", 1),
        ("rebalance_max_retries", 0),
        ("rebalance_backoff_ms", 1),
        ("num_consumer_fetchers", 1),
        ("queued_max_records", 1),
        ("session_timeout_ms", 1),
        ("heartbeat_interval_ms", 1),
        ("rebalance_timeout_ms", 1),
        ("max_poll_interval_ms", 1),
        ("fetch_min_bytes", 0),
        ("fetch_max_bytes", 1),
        ("max_partition_fetch_bytes", 1),
        ("fetch_max_wait_ms", 0),
        ("metadata_max_age_ms", 1),
        ("retry_backoff_ms", 1),
        ("retry_backoff_max_ms", 100),
        ("request_timeout_ms", 1),
        ("close_timeout", 0),
    ],
)
def test_a_number_out_of_its_range_is_an_error(name: str, least: int) -> None:
    """The error names an option that was given. Beyond 31 bits nothing can be sent."""
    for value in (least - 1, -1, MAX_INT32 + 1):
        with pytest.raises(ConfigurationError) as caught:
            checked(**{name: value})
        assert str(caught.value) == f"{name}={value}; expected {least} to {MAX_INT32}"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_close_timeout_is_finite(value: float) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked(close_timeout=value)
    assert str(caught.value) == f"close_timeout={value}; expected 0 to {MAX_INT32}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_id": ""}, "group_id is empty; give a name, or None for no group"),
        (
            {"group_instance_id": ""},
            "group_instance_id is empty; give a name, or None for a dynamic member",
        ),
        (
            {"group_instance_id": "i", "group_id": None},
            "group_instance_id='i' needs a group_id",
        ),
        *(
            (
                {"auto_offset_reset": value},
                (
                    f"auto_offset_reset={value!r}{unlike}; expected 'earliest', 'latest', 'none'"
                    " or a timedelta back from now"
                ),
            )
            for value, unlike in (
                ("smallest", ""),
                (None, ""),
                (5, " is a number"),
                (timedelta(seconds=-1), ""),
            )
        ),
        (
            {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 6_000},
            (
                "heartbeat_interval_ms=6000 must be less than session_timeout_ms=6000;"
                " at most a third of it is recommended"
            ),
        ),
        (
            {"on_deserialization_error": "ignore"},
            "on_deserialization_error='ignore'; expected 'raise', 'skip' or a function",
        ),
        (
            {"on_deserialization_error": None},
            "on_deserialization_error=None; expected 'raise', 'skip' or a function",
        ),
        ({"assignors": []}, "assignors are []; expected one or more, each once"),
        (
            {"assignors": [range_assignor, range_assignor]},
            "assignors are ['range', 'range']; expected one or more, each once",
        ),
        (
            {"assignors": ["range"]},
            (
                "assignor 'range' is a string; expected a function of kafkagroup.assign, such as"
                " range_assignor"
            ),
        ),
        ({"assignors": [5]}, "assignor 5 needs an attribute protocol_name: a string"),
        (
            {"value_deserializer": str},
            "value_deserializer=str makes \"b'one'\" of b'one'; bytes.decode makes 'one' of it",
        ),
        (
            {"key_deserializer": str},
            "key_deserializer=str makes \"b'one'\" of b'one'; bytes.decode makes 'one' of it",
        ),
        (
            {"group_protocol": "new"},
            "group_protocol='new'; expected one of ['classic', 'consumer', 'auto']",
        ),
        (
            {"group_protocol": "classic", "group_remote_assignor": "u"},
            (
                "group_remote_assignor='u' must name an assignor of the coordinator, such as"
                " 'uniform' or 'range', and needs group_protocol='consumer' or 'auto'"
            ),
        ),
        (
            {"group_protocol": "consumer", "group_remote_assignor": ""},
            (
                "group_remote_assignor='' must name an assignor of the coordinator, such as"
                " 'uniform' or 'range', and needs group_protocol='consumer' or 'auto'"
            ),
        ),
        (
            {"group_protocol": "consumer", "assignors": [range_assignor]},
            (
                "assignors run on members, but with group_protocol='consumer' the coordinator"
                " assigns; use group_remote_assignor"
            ),
        ),
        (
            {
                "group_protocol": "auto",
                "group_remote_assignor": "range",
                "assignors": [range_assignor],
            },
            "assignors and group_remote_assignor exclude each other; give one",
        ),
    ],
    # Without the addresses of functions: all workers of pytest-xdist must find the same ids.
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),
)
def test_contradictory_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked(**changes)
    assert str(caught.value) == message


def test_auto_is_classic_with_a_client_side_assignor() -> None:
    assert checked(group_protocol="auto").group_protocol is ConsumerProtocol.AUTO
    given = checked(group_protocol="auto", assignors=[range_assignor])
    assert given.group_protocol is ConsumerProtocol.CLASSIC


def test_a_pattern_goes_to_the_server_with_its_flags() -> None:
    patterns = (re.compile("a.*"), re.compile("a.*", re.IGNORECASE | re.DOTALL))
    assert [server_pattern(p) for p in patterns] == ["a.*", "(?is)a.*"]
    assert server_pattern(re.compile("(?iu)a.*")) == "(?i)a.*"
    assert server_pattern(re.compile("(?i)(?u)a.*")) == "(?i)a.*"
    assert server_pattern(re.compile(" # all\n(?u) a.*", re.VERBOSE)) == "a.*"


VERBOSE = r"""
    orders [.]      # the prefix, and not a comment [ in it
    (?: eu | us )   # regions
    [ #\]x]? \#
"""


def test_a_verbose_pattern_goes_to_the_server_without_spaces_and_comments() -> None:
    verbose = re.compile(VERBOSE, re.VERBOSE)
    plain = "orders[.](?:eu|us)[ #\\]x]?\\#"
    assert [verbose.fullmatch(t) is not None for t in ("orders.eu #", "orders.eux#")] == [True] * 2
    assert server_pattern(verbose) == plain
    assert server_pattern(re.compile("(?x)" + VERBOSE)) == plain
    assert server_pattern(re.compile("(?xi)" + VERBOSE)) == "(?i)" + plain


@pytest.mark.parametrize("pattern", [5, b"a.*", re.compile(b"a.*")])
def test_a_pattern_of_another_type_is_refused(pattern: Any) -> None:
    with pytest.raises(ConfigurationError, match="is neither a string nor compiled from one"):
        checked_pattern(pattern, ())


BOOLEANS = ["enable_auto_commit", "check_crcs", "heartbeat_thread", "views"]
DURATIONS = ["session_timeout_ms", "request_timeout_ms", "fetch_max_wait_ms", "close_timeout"]
COUNTS = ["fetch_max_bytes", "queued_max_records", "offsets_commit_max_retries"]
NAMES = ["group_id", "client_id", "group_instance_id", "client_rack", "group_remote_assignor"]
FUNCTIONS = ["on_partitions_revoked", "value_deserializer", "partition_loads"]


SERVERS = "'host:port,host:port' or a list of 'host:port'"


def refused(name: str, value: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        checked(**{name: value})
    return str(caught.value)


@pytest.mark.parametrize("name", BOOLEANS)
def test_a_boolean_option_accepts_only_true_and_false(name: str) -> None:
    """An environment variable is a string, and "false" counted as true: it committed."""
    said = f"{name}='false' is a string; expected True or False"
    assert refused(name, "false") == said
    assert refused(name, 0) == f"{name}=0 is a number; expected True or False"
    assert refused(name, None) == f"{name}=None; expected True or False"


def test_a_boolean_option_with_a_derived_default_accepts_none() -> None:
    assert refused("leave_group_on_close", "no") == (
        "leave_group_on_close='no' is a string; expected True or False or None"
    )


@pytest.mark.parametrize("name", DURATIONS + COUNTS)
def test_a_number_option_rejects_strings_and_booleans(name: str) -> None:
    said = refused(name, "10000")
    assert said.startswith(f"{name}='10000' is a string; expected a ")
    assert f" to {MAX_INT32}" in said
    assert refused(name, True).startswith(f"{name}=True is a boolean; expected a ")


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_must_be_whole(name: str) -> None:
    assert refused(name, 1.5).startswith(f"{name}=1.5 is a number; expected a whole number, ")


def test_a_duration_may_have_a_fraction() -> None:
    assert checked(session_timeout_ms=1.5 * 4_001).session_timeout == 6.0015


@pytest.mark.parametrize("name", NAMES)
def test_a_name_must_be_a_string(name: str) -> None:
    nothing = "" if name == "client_id" else " or None"
    assert refused(name, 5) == f"{name}=5 is a number; expected {_STRING}{nothing}"
    assert refused(name, b"g") == f"{name}=b'g' is bytes; expected {_STRING}{nothing}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_callback_must_be_callable(name: str) -> None:
    assert refused(name, "f") == f"{name}='f' is a string; expected a function or None"


@pytest.mark.parametrize("name", ["group_protocol", "isolation_level"])
def test_an_unknown_choice_lists_the_valid_ones(name: str) -> None:
    for value in ("new", None, 1):
        assert refused(name, value).partition("; expected one of ")[2].startswith("['")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "bootstrap_servers",
            {"h": 9092},
            f"bootstrap_servers is of type dict; expected {SERVERS}",
        ),
        (
            "bootstrap_servers",
            None,
            f"bootstrap_servers=None; expected {SERVERS}",
        ),
        ("pattern", 5, "pattern=5 is a number; expected a regular expression or None"),
        (
            "assignors",
            "range",
            "assignors='range' is a string; expected a list of assignors or None",
        ),
        (
            "assignors",
            range_assignor,
            "assignors is of type function; expected a list of assignors or None",
        ),
        ("membership", 5, "membership=5 is a number; expected a ZooKeeperMembership or None"),
    ],
)
def test_values_of_the_wrong_type_are_refused(name: str, value: object, message: str) -> None:
    assert refused(name, value) == message


def test_secret_values_are_not_shown_in_errors() -> None:
    given = {"sasl.password": "secret"}
    assert refused("group_id", given) == f"group_id is of type dict; expected {_STRING} or None"
    with pytest.raises(ConfigurationError, match=r"^security is a dict; expected"):
        Consumer(security=given)  # type: ignore[arg-type]


@pytest.mark.parametrize("client", [GroupMember, Admin, Producer])
def test_all_clients_check_their_options(client: Any) -> None:
    positional = ("g", GroupProtocol("t", "n", b"", dict)) if client is GroupMember else ()
    for name, value, message in (
        ("request_timeout_ms", "10000", "is a string; expected a number, 1 to"),
        ("client_id", 5, "is a number; expected a string"),
        ("retry_backoff_max_ms", 50, "=50; expected 100 to"),
        ("security", {}, "security is a dict"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            client(*positional, **{name: value})


def test_an_unknown_codec_of_a_producer_lists_the_valid_ones() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^compression_type='zip'; expected one of \['none', 'gzip'"
    ):
        Producer(compression_type="zip")  # type: ignore[arg-type]


def test_a_producer_does_not_let_a_batch_linger_until_it_fails() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^linger_ms=5000 must be less than delivery_timeout_ms=5000"
    ):
        Producer(linger_ms=5_000, delivery_timeout_ms=5_000)
    Producer(linger_ms=4_999, delivery_timeout_ms=5_000)


@pytest.mark.parametrize("name", ["transactional_id", "client_id"])
@pytest.mark.parametrize("value", ["x" * 32_768, "\N{GREEK SMALL LETTER ALPHA}" * 16_384, "\ud800"])
def test_a_string_that_no_request_can_carry_is_refused(name: str, value: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"^{name}=.*; expected a string of at most 32767 bytes"
    ) as raised:
        Producer(**{name: value})  # type: ignore[arg-type]
    assert len(str(raised.value)) < 300
