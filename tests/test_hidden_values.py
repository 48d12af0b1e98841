"""Refused options: error reports show the variables of each frame, where passwords must not be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from traceback import walk_tb
from types import FrameType
from typing import Any

import pytest

from kafkagroup import (
    Admin,
    ConfigurationError,
    Consumer,
    Election,
    GroupMember,
    GroupProtocol,
    Producer,
    Shards,
)
from kafkagroup.compat.kafka_python import (
    BaseCoordinator,
    ConsumerCoordinator,
    KafkaClient,
    Metrics,
    SubscriptionState,
)
from kafkagroup.zookeeper.membership import ZooKeeperMembership

SECRET = "correct-horse"
PROTOCOL = GroupProtocol("t", "n", b"", lambda members: {})

MAKES: dict[str, Callable[..., object]] = {
    "Consumer": Consumer,
    "Producer": Producer,
    "Admin": Admin,
    "GroupMember": partial(GroupMember, "g", PROTOCOL),
    "Election": partial(Election, "g"),
    "Shards": partial(Shards, "g", 3),
}
WRONG: dict[str, Any] = {
    "sasl_plain_password": SECRET,
    "security": {"sasl_password": SECRET},
    "bootstrap_servers": f"kafka://user:{SECRET}@h:9092",
}
REFUSED = {
    **{f"{name} {option}": partial(makes, **{option: WRONG[option]})
       for name, makes in MAKES.items() for option in WRONG},
    **{f"{name} mapping": partial(makes, {"sasl.password": SECRET})
       for name, makes in MAKES.items() if name not in ("Election", "Shards")},
    "Consumer topic and mapping": partial(Consumer, "t", {"sasl.password": SECRET}),
    "ZooKeeperMembership": partial(ZooKeeperMembership, "", username="u", password=SECRET),
    "BaseCoordinator": partial(
        BaseCoordinator, KafkaClient(), Metrics(), sasl_plain_password=SECRET
    ),
    "ConsumerCoordinator": partial(
        ConsumerCoordinator,
        KafkaClient(),
        SubscriptionState(),
        Metrics(),
        sasl_plain_password=SECRET,
    ),
}  # fmt: skip


def frames(error: BaseException | None) -> Iterator[FrameType]:
    """Yield the frames of an error and of its causes, without this file's."""
    while error is not None:
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename != __file__:
                yield traceback.tb_frame
            traceback = traceback.tb_next
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_no_frame_of_a_refused_constructor_has_its_arguments(refused: Any) -> None:
    """A misplaced password once was plain text in `options`."""
    with pytest.raises((ConfigurationError, TypeError)) as caught:
        refused()
    shown = [repr(dict(frame.f_locals)) for frame in frames(caught.value)]
    assert [text for text in (*shown, str(caught.value)) if SECRET in text] == []
    assert shown, "the frames themselves stay: they say where"


@pytest.mark.parametrize("makes", MAKES.values(), ids=MAKES)
def test_a_client_whose_options_were_refused_has_a_repr(makes: Any) -> None:
    """It raised AttributeError, so that reports of the error had no variables at all."""
    kind = makes.func if isinstance(makes, partial) else makes
    client = kind.__new__(kind)
    with pytest.raises(Exception, match="request_timeout_ms=-1"):
        client.__init__(*getattr(makes, "args", ()), request_timeout_ms=-1)
    assert kind.__name__ in repr(client)


def test_an_address_is_shown_without_the_password_before_it() -> None:
    with pytest.raises(Exception, match=r"has '\.\.\.@h:9092'; expected host:port"):
        Consumer(bootstrap_servers=WRONG["bootstrap_servers"])


def test_the_error_that_the_application_was_handling_keeps_its_variables() -> None:
    def fails() -> None:
        order = "of the application"
        raise LookupError(order)

    def goes_on() -> None:
        try:
            fails()
        except LookupError:
            Consumer(security={"sasl_password": SECRET})

    with pytest.raises(ConfigurationError) as caught:
        goes_on()
    handled: BaseException | None = caught.value
    while handled is not None and not isinstance(handled, LookupError):
        handled = handled.__context__
    assert handled is not None
    frames = [frame for frame, _ in walk_tb(handled.__traceback__)]
    assert frames[-1].f_locals == {"order": "of the application"}
