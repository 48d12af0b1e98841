"""A group's committed offsets: commit and fetch, at the coordinator, on a connection of their own.

Commits go out one at a time, in the order they were asked for. What an error code means is in the
table of each of the two requests; whatever is not in it is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import anyio
import attrs

from kafkagroup.errors import (
    COORDINATOR_MOVED,
    BrokerError,
    CommitFailedError,
    ErrorCode,
    FencedError,
    RemoteProtocolError,
    TransportError,
)
from kafkagroup.net.broker import Broker
from kafkagroup.net.cluster import Cluster
from kafkagroup.net.metadata import Node
from kafkagroup.net.retry import Pauses
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.offsets import OffsetCommitResponse, OffsetFetchResponse

__all__ = ["NO_MEMBERSHIP", "GroupOffsets", "Identity"]

logger = logging.getLogger(__name__)

_SAME_COORDINATOR = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )
)
_NOT_OURS = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_ID_NOT_FOUND,  # version 9+ to a member of a group that is gone
    )
)


@attrs.frozen
class Identity:
    """On whose behalf offsets are committed."""

    generation_id: int
    member_id: str
    group_instance_id: str | None = None


NO_MEMBERSHIP = Identity(-1, "")
"""A consumer that was given its partitions by hand."""


class _Retry(Exception):
    """The answer says: again, after a pause."""

    def __init__(self, error: BrokerError) -> None:
        self.error = error


class GroupOffsets:
    """The committed offsets of one group."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._coordinator: Node | None = None
        self._committing = anyio.Lock()

    async def commit(
        self,
        identity: Identity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout: float,
    ) -> None:
        """Commit, trying again until `timeout` seconds have passed.

        Raises: CommitFailedError when the identity is no longer a member of the generation,
        FencedError, BrokerError, TransportError.
        """
        last: Exception | None = None
        pauses = Pauses(self._cluster.options)
        # The commits before this one count against its deadline: closing must not wait for one
        # that a dead coordinator holds up.
        with anyio.move_on_after(timeout):
            async with self._committing:
                while True:
                    try:
                        return await self._commit_once(identity, offsets)
                    except _Retry as retry:
                        last = retry.error
                    except (TransportError, RemoteProtocolError) as error:
                        self._coordinator = None
                        last = error
                    logger.info("group %s: commit is tried again: %s", self._group_id, last)
                    await pauses.wait()
        raise last or TransportError(f"the commit was not answered within {timeout:g} s")

    async def _commit_once(
        self, identity: Identity, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        broker = await self._broker()
        answer = await broker.commit_consumer_group_offsets(
            self._group_id,
            identity.generation_id,
            identity.member_id,
            offsets,
            group_instance_id=identity.group_instance_id,
        )
        self._check_commit(answer, offsets)

    def _check_commit(
        self, answer: OffsetCommitResponse, offsets: Iterable[TopicPartition]
    ) -> None:
        unanswered = set(offsets)
        for topic in answer.topics:
            for partition in topic.partitions:
                unanswered.discard(TopicPartition(topic.name, partition.partition_index))
                if (code := partition.error_code) == ErrorCode.NONE:
                    continue
                where = f"committing {topic.name}/{partition.partition_index}"
                if code in _NOT_OURS:
                    raise CommitFailedError(
                        f"{where}: {BrokerError(code)}: the group has rebalanced; the partition's"
                        " next owner starts at the last commit that succeeded"
                    )
                if code == ErrorCode.FENCED_INSTANCE_ID:
                    raise FencedError(f"{where}: another member took this group_instance_id")
                self._raise(code, where)
        if unanswered:
            raise RemoteProtocolError(f"the coordinator did not answer for {min(unanswered)}")

    def _raise(self, code: int, what: str) -> None:
        error = BrokerError(code, f"{what} of group {self._group_id!r}")
        if code in COORDINATOR_MOVED:
            self._coordinator = None
            raise _Retry(error)
        if code in _SAME_COORDINATOR:
            raise _Retry(error)
        raise error

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition; None where there is none.

        Retriable errors are tried again for as long as the caller waits: a failed look-up must
        never pass for "no offset". Raises: BrokerError for the others.
        """
        wanted = tuple(partitions)
        pauses = Pauses(self._cluster.options)
        while True:
            try:
                broker = await self._broker()
                answer = await broker.fetch_consumer_group_offsets(self._group_id, wanted)
                return self._check_fetch(answer, wanted)
            except _Retry as retry:
                error: Exception = retry.error
            except (TransportError, RemoteProtocolError) as failure:
                self._coordinator = None
                error = failure
            logger.info("group %s: committed offsets: %s", self._group_id, error)
            await pauses.wait()

    def _check_fetch(
        self, answer: OffsetFetchResponse, wanted: tuple[TopicPartition, ...]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for group in answer.groups:
            if group.error_code:
                self._raise(group.error_code, "reading offsets")
            for topic in group.topics:
                for p in topic.partitions:
                    tp = TopicPartition(topic.name, p.partition_index)
                    if p.error_code:
                        self._raise(p.error_code, f"reading the offset of {tp}")
                    # Any negative offset means none, whatever the number.
                    found[tp] = (
                        OffsetAndMetadata(
                            p.committed_offset, p.metadata or "", p.committed_leader_epoch
                        )
                        if p.committed_offset >= 0
                        else None
                    )
        missing = [tp for tp in wanted if tp not in found]
        if missing:
            raise RemoteProtocolError(f"the coordinator did not answer for {missing[0]}")
        return found

    async def _broker(self) -> Broker:
        if self._coordinator is None:
            try:
                self._coordinator = await self._cluster.find_coordinator(self._group_id)
            except BrokerError as error:
                if error.retriable:
                    raise _Retry(error) from None
                raise
        return self._cluster.broker(self._coordinator)
