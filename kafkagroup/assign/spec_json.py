"""A GroupSpec from JSON, as `kafkagroup plan --spec` reads it.

```json
{
  "members": {
    "a": {"topics": ["orders"], "owned": {"orders": [0, 1]}, "generation": 7},
    "b": {"topics": ["orders"], "instance_id": "node-2", "rack": "east", "capacity": 2.0},
    "c": {"topics": ["audit"], "user_data": "AAAABw=="}
  },
  "topics": {
    "orders": {"partitions": 2, "racks": [["east", "west"], ["west"]]},
    "audit": 4
  },
  "loads": {"orders": {"0": 120.5}}
}
```

`members` and `topics` are required, and the `topics` of each member; all else has the defaults of
`GroupSpec` and `MemberSpec`. A topic is its number of partitions, or an object, which may also have
the racks of each partition's replicas. `user_data` is in base64. The text may come from anywhere:
everything in it is checked.
"""

from __future__ import annotations

from kafkagroup.assign import json_values as js
from kafkagroup.assign.spec import GroupSpec, MemberSpec
from kafkagroup.types import TopicPartition

__all__ = ["MAX_CHARACTERS", "MAX_PARTITIONS", "spec_from_json"]

MAX_CHARACTERS = 64 * 1024 * 1024
"""Longest text: twenty times the length for 2,000 members that own 100,000 partitions."""

MAX_PARTITIONS = 1_000_000
"""Most partitions of all topics together: ten times as many as the largest group that is supported
has. A few bytes can claim any number, and the cost of an assignor grows with it."""

_MAX_NUMBER = 2.0**63
"""Largest load and capacity: above any lag or rate, and the sum of a million is finite."""


def spec_from_json(text: str) -> GroupSpec:
    """Return the GroupSpec that the text describes.

    Raises: ConfigurationError with the path of a wrong value, what was found and what was expected.
    """
    found = js.parse(text, "the spec", MAX_CHARACTERS)
    root = js.fields(found, "$", required=("members", "topics"), optional=("loads",))
    partitions: dict[str, int] = {}
    racks: dict[str, tuple[frozenset[str], ...]] = {}
    for name, value, path in js.entries(root["topics"], "$.topics"):
        partitions[name], replicas = _topic(value, path)
        if replicas is not None:
            racks[name] = replicas
    if (total := sum(partitions.values())) > MAX_PARTITIONS:
        js.refuse("$.topics", f"{total} partitions", f"at most {MAX_PARTITIONS}")
    return GroupSpec(
        members={
            name: _member(value, path)
            for name, value, path in js.entries(root["members"], "$.members")
        },
        partitions=partitions,
        racks=racks,
        loads={
            TopicPartition(topic, js.partition_key(number, path)): js.number(
                value, path, most=_MAX_NUMBER
            )
            for topic, by_partition, topic_path in js.entries(root.get("loads", {}), "$.loads")
            for number, value, path in js.entries(by_partition, topic_path)
        },
    )


def _member(value: object, path: str) -> MemberSpec:
    found = js.fields(
        value,
        path,
        required=("topics",),
        optional=("instance_id", "rack", "owned", "generation", "capacity", "user_data"),
    )
    return MemberSpec(
        topics=frozenset(js.list_of(found["topics"], f"{path}.topics", js.non_empty)),
        instance_id=js.nullable(found.get("instance_id"), f"{path}.instance_id", js.non_empty),
        rack=js.nullable(found.get("rack"), f"{path}.rack", js.string),
        owned=tuple(
            sorted(
                TopicPartition(topic, number)
                for topic, numbers, topic_path in js.entries(
                    found.get("owned", {}), f"{path}.owned"
                )
                for number in _once(js.list_of(numbers, topic_path, js.integer), topic_path)
            )
        ),
        generation=js.integer(found.get("generation", -1), f"{path}.generation", least=-1),
        capacity=js.number(
            found.get("capacity", 1.0), f"{path}.capacity", most=_MAX_NUMBER, positive=True
        ),
        user_data=js.nullable(found.get("user_data"), f"{path}.user_data", js.base64),
    )


def _topic(value: object, path: str) -> tuple[int, tuple[frozenset[str], ...] | None]:
    """Read a topic: its number of partitions, and the racks of each partition's replicas; None if
    they are not given."""
    if not isinstance(value, dict):
        return js.integer(value, path, instead=", or an object"), None
    found = js.fields(value, path, required=("partitions",), optional=("racks",))
    count = js.integer(found["partitions"], f"{path}.partitions")
    if "racks" not in found:
        return count, None
    racks = js.list_of(found["racks"], f"{path}.racks", _racks)
    if len(racks) != count:
        js.refuse(
            f"{path}.racks", f"racks of {len(racks)} partitions", f"of {count}, one list each"
        )
    return count, tuple(racks)


def _racks(value: object, path: str) -> frozenset[str]:
    return frozenset(js.list_of(value, path, js.string))


def _once(numbers: list[int], path: str) -> list[int]:
    """Return the partition numbers. Raises: ConfigurationError if one appears twice."""
    if len(set(numbers)) < len(numbers):
        js.refuse(path, "a partition twice", "each once")
    return numbers
