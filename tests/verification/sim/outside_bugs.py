"""Planted bugs of clients that believe one broker; see `bugs`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import attrs

from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.runtime.consume import committer
from kafkagroup.runtime.consume import fetch_response as fetch_responses
from kafkagroup.runtime.consume.refusals import Refusals
from kafkagroup.transport import merging
from kafkagroup.transport.identity import ClusterIdentity
from kafkagroup.transport.metadata import TopicMetadata
from kafkagroup.wire import error_codes
from kafkagroup.wire.schema import NO_ID

from .planting import Bug, around, bug, replace

__all__ = ["BUGS"]

BUGS: dict[str, Bug] = {}


# ------------------------------------------------------------------ metadata


@bug(BUGS, "classic", "S22", kinds=["lagging_topics"])
def believes_one_broker_that_lacks_a_topic(stack: ExitStack) -> None:
    """A topic is absent as soon as one answer has it as absent."""

    def absent(known: Any, response: Any, before: Any) -> Any:
        if response is None:
            return None, None
        return TopicMetadata(NO_ID, {}, response.error_code, is_absent=True), None

    replace(stack, merging, "_absent", absent)


@bug(BUGS, "classic", "S22", kinds=["lagging_counts"])
def believes_one_broker_that_has_fewer_partitions(stack: ExitStack) -> None:
    """A topic has fewer partitions as soon as one answer has fewer."""

    def make(continued: Any) -> Any:
        def faulty(known: Any, response: Any, before: Any, shared: Any) -> Any:
            topic, claim = continued(known, response, before, shared)
            listed = {p.partition_index for p in response.partitions}
            partitions = {n: p for n, p in topic.partitions.items() if n in listed}
            return attrs.evolve(topic, partitions=partitions), claim

        return faulty

    around(stack, merging, "_continued", make)


@bug(BUGS, "classic", "S8", "S5", "S6", "S19", "S23", kinds=["lagging_ids"])
def believes_one_broker_that_has_an_old_topic_id(stack: ExitStack) -> None:
    """A topic is recreated as soon as one answer has another id, whichever id its leader serves."""

    def make(topic_after: Any) -> Any:
        def faulty(known: Any, response: Any, before: Any, shared: Any) -> Any:
            topic, claim = topic_after(known, response, before, shared)
            if claim is not None and claim.successor is not None:
                return claim.successor, None
            return topic, claim

        return faulty

    around(stack, merging, "_topic", make)
    replace(stack, OwnedPartition, "is_recreated", OwnedPartition.is_of_other_topic)


@bug(BUGS, "classic", "L2", kinds=["lagging_epochs"])
def believes_a_high_leader_epoch_for_ever(stack: ExitStack) -> None:
    """A leader epoch known from metadata never falls."""

    def make(partitions: Any) -> Any:
        return lambda response, shared, known=merging._NONE_KNOWN, _=None: partitions(
            response, shared, known
        )

    around(stack, merging, "_partitions", make)


# ------------------------------------------------------------------ positions


@bug(BUGS, "classic", "S23", kinds=["refusals"])
def resets_on_a_false_refusal(stack: ExitStack) -> None:
    """The first OFFSET_OUT_OF_RANGE resets a position, whose leader is not asked for its log."""
    replace(stack, OwnedPartition, "doubt_range", OwnedPartition.request_reset)


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
            owned.fail(error)

        return faulty

    around(stack, Refusals, "refuse", make)


@bug(BUGS, "classic", "L2", kinds=["refusing_replica"])
def stays_with_a_replica_that_refuses(stack: ExitStack) -> None:
    """The nearest replica is asked again after each refusal."""
    replace(stack, OwnedPartition, "avoid_replicas", lambda self, until, trouble: None)
