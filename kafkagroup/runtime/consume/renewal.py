"""Finds the committed offsets that a broker has deleted, for a consumer without a membership.

A broker deletes the offsets of a group without members `offsets.retention.minutes` after their last
commit, by default after seven days. After a restart the consumer would then begin where
`auto_offset_reset` says, and read records again or skip some.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kafkagroup.consume.commits import Commit, topic_ids
from kafkagroup.runtime.offsets.group_offsets import GroupOffsets

__all__ = ["find_missing"]

logger = logging.getLogger(__name__)


async def find_missing(offsets: GroupOffsets, acknowledged: Sequence[Commit]) -> list[Commit]:
    """Return those of the `acknowledged` commits that the coordinator does not have any more.

    A commit that another client has replaced is not missing: only log a warning. If the look-up
    fails, nothing counts as missing, nor if the metadata cannot be refreshed afterwards: an offset
    may be missing because its topic was recreated.
    """
    ids = topic_ids(acknowledged)
    found = await offsets.fetch_once([commit.tp for commit in acknowledged], {}, topic_ids=ids)
    for tp in sorted(found.errors)[:1]:  # one warning for all of them
        logger.warning("the committed offset of %s cannot be looked up: %s", tp, found.errors[tp])
    missing: list[Commit] = []
    for commit in acknowledged:
        if commit.tp not in found.offsets:
            continue
        stored = found.offsets[commit.tp]
        if stored is None:
            missing.append(commit)
        elif commit.owned.note_stored(stored.offset):
            logger.warning(
                "%s: the committed offset is %d, but this consumer has committed %d: an operator or"
                " another consumer has moved it; it stays until this consumer processes more",
                commit.tp,
                stored.offset,
                commit.offset.offset,
            )
    topics = {commit.tp.topic for commit in missing}
    return missing if missing and await offsets.refresh_metadata(topics) else []
