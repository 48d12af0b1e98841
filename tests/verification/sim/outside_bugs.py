"""Planted bugs of clients that believe one broker; see `bugs`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import attrs

from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.replica_choice import ReplicaChoice
from kafkagroup.runtime.consume import committer
from kafkagroup.runtime.consume import fetch_response as fetch_responses
from kafkagroup.runtime.consume.range_check import RangeCheck
from kafkagroup.runtime.consume.refusals import Refusals
from kafkagroup.transport import cluster as clusters
from kafkagroup.transport.identity import ClusterIdentity
from kafkagroup.wire import error_codes
from kafkagroup.wire.error_codes import ABSENT

from .planting import Bug, around, bug, replace, reset_without_asking

__all__ = ["BUGS"]

BUGS: dict[str, Bug] = {}


# ------------------------------------------------------------------ metadata


def _believe(stack: ExitStack, is_believed: Callable[[Any], bool]) -> None:
    """Believe such a claim of one broker, as if the next one had repeated it."""

    def make(merge: Any) -> Any:
        def faulty(known: Any, response: Any, before: Any, **named: Any) -> Any:
            metadata, claims = merge(known, response, before, **named)
            believed = {name: c for name, c in claims.topics.items() if is_believed(c)}
            if not believed:
                return metadata, claims
            return merge(metadata, response, attrs.evolve(claims, topics=believed), **named)

        return faulty

    around(stack, clusters, "merge", make)


@bug(BUGS, "classic", "S22", kinds=["lagging_topics"])
def believes_one_broker_that_lacks_a_topic(stack: ExitStack) -> None:
    """A topic is absent as soon as one response has it as absent."""
    _believe(stack, lambda claim: claim.error_code in ABSENT)


@bug(BUGS, "classic", "S22", kinds=["lagging_counts"])
def believes_one_broker_that_has_fewer_partitions(stack: ExitStack) -> None:
    """A topic has fewer partitions as soon as one response has fewer."""

    def make(merge: Any) -> Any:
        def faulty(known: Any, response: Any, *before: Any, **named: Any) -> Any:
            metadata, claims = merge(known, response, *before, **named)
            topics = dict(metadata.topics)
            for described in response.topics:
                if (topic := topics.get(described.name)) is not None and described.partitions:
                    listed = {p.partition_index for p in described.partitions}
                    partitions = {n: p for n, p in topic.partitions.items() if n in listed}
                    topics[described.name] = attrs.evolve(topic, partitions=partitions)
            return attrs.evolve(metadata, topics=topics), claims

        return faulty

    around(stack, clusters, "merge", make)


@bug(BUGS, "classic", "S8", "S5", "S6", "S19", "S23", kinds=["lagging_ids"])
def believes_one_broker_that_has_an_old_topic_id(stack: ExitStack) -> None:
    """A topic is recreated as soon as one response has another id, whatever its leader serves."""
    _believe(stack, lambda claim: claim.successor is not None)
    replace(stack, OwnedPartition, "is_recreated", OwnedPartition.is_of_other_topic)


@bug(BUGS, "classic", "L2", kinds=["lagging_epochs"])
def believes_a_high_leader_epoch_for_ever(stack: ExitStack) -> None:
    """A leader epoch known from metadata never falls."""

    def make(merge: Any) -> Any:
        def faulty(known: Any, response: Any, before: Any, **named: Any) -> Any:
            claims = {name: attrs.evolve(c, epochs={}) for name, c in before.topics.items()}
            return merge(known, response, attrs.evolve(before, topics=claims), **named)

        return faulty

    around(stack, clusters, "merge", make)


# ------------------------------------------------------------------ positions


@bug(BUGS, "classic", "S23", kinds=["refusals"])
def resets_on_a_false_refusal(stack: ExitStack) -> None:
    """The first OFFSET_OUT_OF_RANGE resets a position, whose leader is not asked for its log."""
    replace(stack, RangeCheck, "wake", reset_without_asking)


# ------------------------------------------------------------------ identity


@bug(BUGS, "classic", "S24", kinds=["foreign_cluster"])
def takes_any_cluster_for_its_own(stack: ExitStack) -> None:
    """The cluster id is not compared."""
    replace(stack, ClusterIdentity, "refusal", lambda self, response, name: None)


# ------------------------------------------------------------------ commits


@bug(BUGS, "classic", "L10", kinds=["forgotten_offsets"])
def trusts_an_acknowledgement_for_ever(stack: ExitStack) -> None:
    """An acknowledged offset is never sent again."""
    replace(stack, OwnedPartition, "needs_renewal", lambda self, last, now: False)


@bug(BUGS, "classic", "S25", kinds=["late_commits"])
def commits_offsets_of_an_earlier_assignment(stack: ExitStack) -> None:
    """A worker commits what it got in an earlier assignment, below where the present one began."""
    replace(stack, committer, "check_floors", lambda commits: None)


# ------------------------------------------------------------------ refusals


@bug(BUGS, "classic", "L11", kinds=["refusals"])
def is_silent_about_a_refusal(stack: ExitStack) -> None:
    """A refusal that does not pass by itself is retried, and never raised."""

    def make(fetch_action: Any) -> Any:
        def faulty(code: int) -> Any:
            action = fetch_action(code)
            is_raised = action is error_codes.FetchAction.RAISE
            return error_codes.FetchAction.RETRY if is_raised else action

        return faulty

    around(stack, fetch_responses, "fetch_action", make)


@bug(BUGS, "classic", "L2", kinds=["refusals"])
def does_not_read_a_refused_partition_again(stack: ExitStack) -> None:
    """A refused partition waits for a seek."""

    def make(refuse: Any) -> Any:
        def faulty(self: Any, owned: Any, error: Any, about: Any = None) -> None:
            refuse(self, owned, error, about)
            owned.failure = error

        return faulty

    around(stack, Refusals, "refuse", make)


@bug(BUGS, "classic", "L2", kinds=["refusing_replica"])
def stays_with_a_replica_that_refuses(stack: ExitStack) -> None:
    """The nearest replica is asked again after each refusal."""
    replace(stack, ReplicaChoice, "avoid_replicas", lambda self, until, trouble: None)
