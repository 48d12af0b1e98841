"""Faults for an embedded coordinator, each of which the comparison must find."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.consumer_group import AWAY
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.testing.embedded.group import GroupState

from .embedded import KAFKAS, EmbeddedCoordinator

__all__ = ["FAULTS"]


def _old_generations_pass(cluster: Cluster) -> None:
    coordinator = cluster.classic_coordinator
    heartbeat = coordinator.heartbeat

    def always_current(request, caller):
        response = heartbeat(request, caller)
        is_old = response.error_code == ErrorCode.ILLEGAL_GENERATION
        return evolve(response, error_code=0) if is_old else response

    coordinator.heartbeat = always_current


def _leader_assigns_first_member_only(cluster: Cluster) -> None:
    coordinator = cluster.classic_coordinator
    sync = coordinator.sync

    def cut(request, caller, reply):
        sync(evolve(request, assignments=request.assignments[:1]), caller, reply)

    coordinator.sync = cut


def _syncs_do_not_extend_sessions(cluster: Cluster) -> None:
    coordinator = cluster.classic_coordinator
    extend = coordinator._extend_session

    def unless_stable(group, member, now):
        if group.state is not GroupState.STABLE:
            extend(group, member, now)

    coordinator._extend_session = unless_stable


def _instances_are_not_fenced(cluster: Cluster) -> None:
    coordinator = cluster.classic_coordinator
    join = coordinator.join

    def without_instance(request, caller, reply):
        join(evolve(request, group_instance_id=None), caller, reply)

    coordinator.join = without_instance


def _away_members_are_removed(cluster: Cluster) -> None:
    consumer_coordinator = cluster.consumer_coordinator
    heartbeat = consumer_coordinator.heartbeat

    def leave_entirely(request, caller):
        if request.member_epoch != AWAY:
            return heartbeat(request, caller)
        response = heartbeat(evolve(request, member_epoch=-1), caller)
        return evolve(response, member_epoch=AWAY if not response.error_code else 0)

    consumer_coordinator.heartbeat = leave_entirely


def _stale_commits_pass(cluster: Cluster) -> None:
    check = cluster.consumer_coordinator.check_commit

    def lenient(group_id, member_id, epoch, version):
        error, _ = check(group_id, member_id, epoch, version)
        is_stale = error is ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE if is_stale else error, lambda *_: True

    cluster.consumer_coordinator.check_commit = lenient


def _offsets_outlive_topics(cluster: Cluster) -> None:
    delete = cluster.delete_topic

    def keep_offsets(name):
        kept = {group: dict(offsets) for group, offsets in cluster.offsets.items()}
        delete(name)
        cluster.offsets.update(kept)

    cluster.delete_topic = keep_offsets


def _growth_is_not_noticed(cluster: Cluster) -> None:
    counts = cluster.consumer_coordinator._counts
    cluster.consumer_coordinator._counts = lambda: {name: min(n, 2) for name, n in counts().items()}


def _with(prepare: Callable[[Cluster], None]) -> Callable[[], EmbeddedCoordinator]:
    return lambda: EmbeddedCoordinator(prepare=prepare)


FAULTS: Mapping[str, Callable[[], EmbeddedCoordinator]] = {
    "away members are removed": _with(_away_members_are_removed),
    "consumer sessions are 1 ms short": lambda: EmbeddedCoordinator(
        attrs.evolve(KAFKAS, group_consumer_session_timeout=44.999)
    ),
    "growth is not noticed": _with(_growth_is_not_noticed),
    "instances are not fenced": _with(_instances_are_not_fenced),
    "leader assigns the first member only": _with(_leader_assigns_first_member_only),
    "no initial rebalance delay": lambda: EmbeddedCoordinator(
        attrs.evolve(KAFKAS, group_initial_rebalance_delay=0.0)
    ),
    "offsets outlive topics": _with(_offsets_outlive_topics),
    "old generations pass": _with(_old_generations_pass),
    "stale commits pass": _with(_stale_commits_pass),
    "syncs do not extend sessions": _with(_syncs_do_not_extend_sessions),
}
"""What is wrong -> a coordinator that does it."""
