"""Specs as JSON: the format, round trips, and errors with their location."""

import json
import re

import pytest
from assign.fuzz import spec_to_json
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.assign import GroupSpec, MemberSpec, spec_json
from kafkagroup.assign.spec_json import spec_from_json
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TopicPartition

SPEC = GroupSpec(
    members={
        "a": MemberSpec(
            topics=frozenset({"orders"}),
            owned=(TopicPartition("orders", 0), TopicPartition("orders", 1)),
            generation=7,
        ),
        "b": MemberSpec(
            topics=frozenset({"audit", "orders"}), instance_id="node-2", rack="east", capacity=2.0
        ),
        "c": MemberSpec(topics=frozenset({"audit"}), user_data=b"\0\0\0\7"),
    },
    partitions={"audit": 4, "orders": 2},
    racks={"orders": (frozenset({"east", "west"}), frozenset({"west"}))},
    loads={TopicPartition("orders", 0): 120.5},
)

TEXT = """\
{
  "members": {
    "a": {"topics": ["orders"], "owned": {"orders": [0, 1]}, "generation": 7},
    "b": {"topics": ["audit", "orders"], "instance_id": "node-2", "rack": "east", "capacity": 2.0},
    "c": {"topics": ["audit"], "user_data": "AAAABw=="}
  },
  "topics": {
    "audit": 4,
    "orders": {"partitions": 2, "racks": [["east", "west"], ["west"]]}
  },
  "loads": {
    "orders": {"0": 120.5}
  }
}
"""


def test_a_spec_round_trips() -> None:
    assert spec_to_json(SPEC) == TEXT
    assert spec_from_json(TEXT) == SPEC


def test_an_empty_group() -> None:
    assert spec_to_json(GroupSpec(members={}, partitions={})) == (
        '{\n  "members": {},\n  "topics": {}\n}\n'
    )
    assert spec_from_json('{"members": {}, "topics": {}}') == GroupSpec(members={}, partitions={})


def test_the_example_of_the_docstring_is_read() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", spec_json.__doc__ or "", re.DOTALL)
    assert spec_from_json(example) == GroupSpec(
        members={
            "a": SPEC.members["a"],
            "b": MemberSpec(
                topics=frozenset({"orders"}), instance_id="node-2", rack="east", capacity=2.0
            ),
            "c": SPEC.members["c"],
        },
        partitions=SPEC.partitions,
        racks=SPEC.racks,
        loads=SPEC.loads,
    )


def test_racks_of_a_missing_topic_are_omitted() -> None:
    spec = GroupSpec(members={}, partitions={}, racks={"gone": (frozenset({"east"}),)})
    assert spec_from_json(spec_to_json(spec)) == GroupSpec(members={}, partitions={})


NAMES = st.text(min_size=1, max_size=3)
PARTITIONS = st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1))
LOADS = st.floats(0, 2.0**63)


@st.composite
def specs(draw: st.DrawFn) -> GroupSpec:
    partitions = draw(st.dictionaries(NAMES, st.integers(0, 4), max_size=3))
    return GroupSpec(
        members=draw(
            st.dictionaries(
                NAMES,
                st.builds(
                    MemberSpec,
                    topics=st.frozensets(NAMES, max_size=3),
                    instance_id=st.none() | NAMES,
                    rack=st.none() | st.text(max_size=3),
                    owned=st.frozensets(PARTITIONS, max_size=4).map(
                        lambda owned: tuple(sorted(owned))
                    ),
                    generation=st.integers(-1, 2**31 - 1),
                    capacity=st.floats(0, 2.0**63, exclude_min=True),
                    user_data=st.none() | st.binary(max_size=5),
                ),
                max_size=3,
            )
        ),
        partitions=partitions,
        racks={
            topic: tuple(draw(st.frozensets(st.text(max_size=2), max_size=2)) for _ in range(n))
            for topic, n in partitions.items()
            if draw(st.booleans())
        },
        loads=draw(st.dictionaries(PARTITIONS, LOADS, max_size=3)),
    )


@pytest.mark.slow
@settings(max_examples=300)
@given(specs())
def test_any_spec_round_trips(spec: GroupSpec) -> None:
    assert spec_from_json(spec_to_json(spec)) == spec


def bad(**changes: object) -> str:
    """Return a spec with parts replaced."""
    return json.dumps({"members": {}, "topics": {}, **changes})


def of_member(**changes: object) -> str:
    return bad(members={"a": {"topics": [], **changes}})


INT = "an integer from 0 to 2147483647"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "$: found a list; expected an object"),
        ("3", "$: found 3; expected an object"),
        ("{}", "$.members: found nothing; expected this field"),
        (bad(member={}), "$.member: found a field that is not known; expected one of members,"),
        (bad(members=[]), "$.members: found a list; expected an object"),
        (bad(members={"": {}}), "$.members: found an empty name; expected a character or more"),
        (bad(members={"a b": 1}), '$.members["a b"]: found 1; expected an object'),
        (bad(members={"a": {}}), "$.members.a.topics: found nothing; expected this field"),
        (of_member(topics="orders"), '$.members.a.topics: found "orders"; expected a list'),
        (of_member(topics=["t", 3]), "$.members.a.topics[1]: found 3; expected a string"),
        (of_member(topics=[""]), "$.members.a.topics[0]: found an empty name; expected a char"),
        (of_member(rack=1), "$.members.a.rack: found 1; expected a string"),
        (of_member(rack={}), "$.members.a.rack: found an object; expected a string"),
        (of_member(instance_id=""), "$.members.a.instance_id: found an empty name; expected"),
        (of_member(owned=[]), "$.members.a.owned: found a list; expected an object"),
        (of_member(owned={"t": 1}), "$.members.a.owned.t: found 1; expected a list"),
        (of_member(owned={"t": [-1]}), f"$.members.a.owned.t[0]: found -1; expected {INT}"),
        (of_member(owned={"t": [1.0]}), f"$.members.a.owned.t[0]: found 1.0; expected {INT}"),
        (of_member(owned={"t": [True]}), f"$.members.a.owned.t[0]: found true; expected {INT}"),
        (of_member(owned={"t": [1, 1]}), "$.members.a.owned.t: found a partition twice; expected"),
        (of_member(generation=-2), "$.members.a.generation: found -2; expected an integer from -1"),
        (of_member(generation=2**31), "$.members.a.generation: found 2147483648; expected an int"),
        (of_member(capacity=0), "$.members.a.capacity: found 0; expected a number above 0 to"),
        (of_member(capacity=True), "$.members.a.capacity: found true; expected a number above 0"),
        (of_member(user_data=[1]), "$.members.a.user_data: found a list; expected a string"),
        (of_member(user_data="AAA"), '$.members.a.user_data: found "AAA"; expected bytes in b'),
        (of_member(user_data="AA-_"), '$.members.a.user_data: found "AA-_"; expected bytes in b'),
        (of_member(user_data="é"), '$.members.a.user_data: found "\\u00e9"; expected bytes in b'),
        (bad(topics={"t": -1}), f"$.topics.t: found -1; expected {INT}, or an object"),
        (bad(topics={"t": {}}), "$.topics.t.partitions: found nothing; expected this field"),
        (bad(topics={"t": {"partitions": "1"}}), '$.topics.t.partitions: found "1"; expected an'),
        (bad(topics={"t": {"partitions": 1, "racks": []}}), "$.topics.t.racks: found racks of 0 p"),
        (bad(topics={"t": {"partitions": 1, "racks": [[1]]}}), "$.topics.t.racks[0][0]: found 1; "),
        (bad(topics={"t": 600_000, "u": 400_001}), "$.topics: found 1000001 partitions; expected "),
        (bad(loads={"t": {"01": 1}}), '$.loads.t["01"]: found that key; expected a partition'),
        (bad(loads={"t": {"٣": 1}}), '$.loads.t["\\u0663"]: found that key; expected a partition'),
        (
            bad(loads={"t": {"2147483648": 1}}),
            '$.loads.t["2147483648"]: found 2147483648; expected',
        ),
        (bad(loads={"t": {"9" * 5000: 1}}), '$.loads.t["9999'),
        (bad(loads={"t": {"0": -0.5}}), '$.loads.t["0"]: found -0.5; expected a number from 0'),
        (bad(loads={"t": {"0": "x" * 60}}), '$.loads.t["0"]: found "' + "x" * 39 + "...; expected"),
        (
            '{"members": {}, "topics": {}, "loads": {"t": {"0": 1e999}}}',
            '$.loads.t["0"]: found Inf',
        ),
        ('{"members": {}, "topics": {"t": NaN}}', "the spec: found NaN; expected finite numbers"),
        ('{"topics": {}, "topics": {}}', "the spec: found an object with 'topics' twice; expected"),
        ("{", "the spec: not valid JSON: "),
        ("", "the spec: not valid JSON: "),
        ("[" * 100_000, "the spec: not valid JSON: "),
        ("1" * 5_000, "the spec: not valid JSON: "),
    ],
)
def test_malformed_input_is_an_error_with_its_location(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        spec_from_json(text)
    assert str(caught.value).startswith(message)


def test_a_text_beyond_the_size_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_json, "MAX_CHARACTERS", len(TEXT))
    assert spec_from_json(TEXT) == SPEC
    with pytest.raises(ConfigurationError) as caught:
        spec_from_json(TEXT + " ")
    assert (
        str(caught.value)
        == f"the spec: found {len(TEXT) + 1} characters; expected at most {len(TEXT)}"
    )
