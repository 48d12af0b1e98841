"""`Election` and `Shards` with several members, on the embedded broker and on real Kafka."""

import anyio
import pytest
from brokers import FAST, until

from kafkagroup import ConfigurationError
from kafkagroup.coordination import Election, Leader, Shards

pytestmark = pytest.mark.anyio


class Candidate:
    """A candidate in a task; records the tokens of its leaderships."""

    leading = 0
    """How many lead at this moment, of all there are."""

    def __init__(self, bootstrap, name, value):
        self.tokens = []
        self.term = anyio.CancelScope()
        self.election = Election(name, value, bootstrap_servers=bootstrap, **FAST)

    async def run(self, *, task_status=anyio.TASK_STATUS_IGNORED):
        async with self.election:
            task_status.started()
            async for leadership in self.election:
                self.tokens.append(leadership.token)
                with leadership.scope() as self.term:
                    Candidate.leading += 1
                    assert Candidate.leading == 1
                    try:
                        await anyio.sleep_forever()
                    finally:
                        Candidate.leading -= 1


class Worker:
    """A member of `Shards` in a task; records its shard assignments."""

    def __init__(self, bootstrap, name, value, shards=8):
        self.assignments = []
        self.shards = Shards(name, shards, value, bootstrap_servers=bootstrap, **FAST)

    async def run(self, *, task_status=anyio.TASK_STATUS_IGNORED):
        async with self.shards:
            task_status.started()
            async for share in self.shards:
                self.assignments.append(share)
                with share.scope():
                    await anyio.sleep_forever()

    @property
    def stands(self):
        return bool(self.assignments) and not self.assignments[-1].over.is_set()

    @property
    def mine(self):
        return set(self.assignments[-1].mine) if self.stands else None


async def test_one_member_leads_and_all_observe_it(bootstrap, name):
    first, second = (Candidate(bootstrap, name, value) for value in (b"one", b"two"))
    async with anyio.create_task_group() as tasks:
        await tasks.start(first.run)
        await until(lambda: first.tokens)
        assert first.election.leader == Leader(first.election.member_id, b"one", first.tokens[0])
        await tasks.start(second.run)
        with anyio.fail_after(20):
            leader = await anext(second.election.leaders())
        # The leader stays the leader, with a higher token.
        await until(lambda: len(first.tokens) == 2)
        assert leader == Leader(first.election.member_id, b"one", first.tokens[-1])
        assert first.election.leader == leader
        assert first.tokens[1] > first.tokens[0]
        assert second.tokens == []

        first_id = first.election.member_id
        await first.election.stop()
        with anyio.fail_after(20):
            watch = second.election.leaders()
            while (leader := await anext(watch)).member_id == first_id:
                pass
        await until(lambda: second.tokens)
        assert leader == Leader(second.election.member_id, b"two", second.tokens[0])
        assert second.tokens[0] > first.tokens[-1]
        await second.election.stop()
    assert Candidate.leading == 0


async def test_waiting_for_the_next_leadership_resigns_from_the_current(bootstrap, name):
    first, second = (Candidate(bootstrap, name, value) for value in (b"one", b"two"))
    async with anyio.create_task_group() as tasks:
        await tasks.start(first.run)
        await until(lambda: first.tokens)
        first.term.cancel()  # alone, it is elected again
        await until(lambda: len(first.tokens) == 2)
        await tasks.start(second.run)
        await until(lambda: len(first.tokens) == 3)
        assert second.tokens == []
        first.term.cancel()
        await until(lambda: second.tokens)
        second.term.cancel()
        await until(lambda: len(first.tokens) == 4)
        assert len(second.tokens) == 1
        assert sorted(first.tokens + second.tokens) == first.tokens[:3] + second.tokens + [
            first.tokens[3]
        ]
        await first.election.stop()
        await second.election.stop()


async def test_shards_are_balanced_with_few_moves(bootstrap, name):
    workers = [Worker(bootstrap, name, value) for value in (b"one", b"two", b"three")]
    one, two, three = workers
    async with anyio.create_task_group() as tasks:
        await tasks.start(one.run)
        await until(lambda: one.stands)
        assert one.mine == set(range(8))
        await tasks.start(two.run)
        await until(lambda: one.stands and two.stands)
        assert (len(one.mine), len(two.mine)) == (4, 4)
        before = {w: w.mine for w in (one, two)}
        await tasks.start(three.run)
        await until(lambda: all(w.stands for w in workers))
        assert sorted(len(w.mine) for w in workers) == [2, 3, 3]
        assert one.mine | two.mine | three.mine == set(range(8))
        assert one.mine < before[one]
        assert two.mine < before[two]

        ids = {w: w.shards.member_id for w in workers}
        share = one.assignments[-1]
        assert share.member_id == ids[one]
        assert share.members == {ids[one]: b"one", ids[two]: b"two", ids[three]: b"three"}
        assert (share.joined, share.left) == ({ids[three]: b"three"}, {})
        assert three.assignments[-1].joined == share.members
        assert share.token == two.assignments[-1].token == three.assignments[-1].token
        assert share.token > one.assignments[0].token

        before = {w: w.mine for w in (one, three)}
        await two.shards.stop()
        await until(lambda: one.assignments[-1] is not share and one.stands and three.stands)
        assert (one.assignments[-1].joined, one.assignments[-1].left) == ({}, {ids[two]: b"two"})
        assert one.mine > before[one]
        assert three.mine > before[three]
        assert one.mine | three.mine == set(range(8))
        await one.shards.stop()
        await three.shards.stop()


async def test_only_the_member_with_another_number_of_shards_is_rejected(bootstrap, name):
    worker = Worker(bootstrap, name, b"one", shards=8)
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        await until(lambda: worker.stands)
        said = (
            f"group '{name}' runs kafkagroup-shards/8-shards, with the members"
            f" {worker.shards.member_id} at .*;"
            " this member runs kafkagroup-"
        )
        for other, what in (
            (Shards(name, 9, bootstrap_servers=bootstrap, **FAST), "shards/9-shards"),
            (Election(name, bootstrap_servers=bootstrap, **FAST), "election/incumbent"),
        ):
            async with other:
                with anyio.fail_after(20), pytest.raises(ConfigurationError, match=said + what):
                    await anext(other)
        assert len(worker.assignments) == 1
        assert worker.stands
        await worker.shards.stop()
