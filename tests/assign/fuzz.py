"""Run generated groups through every assignor, and check the assignments.

    python tests/assign/fuzz.py [--cases 1000000] [--seed N] [--jobs 2]

A failure prints the command that replays it: the same seed, and the number of its case.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice

import attrs

from kafkagroup.assign import Assignor, GroupSpec, MemberSpec, protocol_name
from kafkagroup.assign.check import EVEN, RULES, STICKY, newest_claims, violations
from kafkagroup.assign.cooperative_sticky import cooperative_sticky_assignor
from kafkagroup.assign.naive import naive_assignor
from kafkagroup.assign.range import range_assignor
from kafkagroup.assign.roundrobin import roundrobin_assignor
from kafkagroup.assign.sticky import sticky_assignor
from kafkagroup.assign.weighted import weighted_sticky
from kafkagroup.types import Assignment, TopicPartition

TOPICS = ("a", "b", "c", "d", "e")
GONE = "gone"
"""A topic that never exists."""

RACKS = ("r1", "r2", "r3")
GENERATION = 50
"""Of the newest claims."""

COOPERATIVE_ROUNDS = 2
"""Rounds until cooperative sticky is stable: members revoke in the first, and gain in the
second."""

WEIGHTED_ROUNDS = 100
"""Weighted sticky moves a part in each, so it may take more; it never came near this many."""

CHUNK = 250
"""Cases between two looks at the progress."""

MOST_FAILURES = 5
"""After so many the run ends: more tell nothing new."""


# ---------------------------------------------------------------- groups


def random_group(chance: random.Random) -> GroupSpec:
    """Generate a group, mostly a small one, as small groups have the odd cases; sometimes one of
    hundreds."""
    large = chance.random() < 0.01
    partitions = _partitions(chance, 60 if large else 8)
    names = [f"m{number}" for number in range(chance.randint(1, 40 if large else 7))]
    chance.shuffle(names)
    subscriptions = _subscriptions(chance, len(names))
    owned = _claims(chance, partitions, subscriptions)
    racks = chance.random() < 0.4
    static = chance.choice((0.0, 0.5, 1.0))
    weighted = chance.random() < 0.3
    straggling = chance.choice((0.0, 0.3))
    members = {}
    for number, name in enumerate(names):
        stale = chance.random() < straggling
        members[name] = MemberSpec(
            topics=subscriptions[number],
            # Sorted the other way round than ids are.
            instance_id=f"i{99 - int(name[1:])}" if chance.random() < static else None,
            rack=chance.choice((*RACKS, "", None)) if racks else None,
            owned=owned[number],
            generation=chance.choice((GENERATION - 1, 3, -1)) if stale else GENERATION,
            capacity=chance.choice((0.5, 1.0, 1.0, 2.0, 3.7)) if weighted else 1.0,
        )
    return GroupSpec(
        members=members,
        partitions=partitions,
        racks={t: _replicas(chance, n) for t, n in partitions.items() if racks},
        loads=_loads(chance, partitions) if chance.random() < 0.6 else {},
    )


def _partitions(chance: random.Random, most: int) -> dict[str, int]:
    """Often use equal counts, so that topics are co-partitioned."""
    common = chance.randint(0, most)
    return {
        topic: common if chance.random() < 0.4 else chance.randint(0, most)
        for topic in TOPICS
        if chance.random() < 0.6
    }


def _subscriptions(chance: random.Random, members: int) -> list[frozenset[str]]:
    share = chance.choice((0.3, 0.7, 0.9))

    def any_() -> frozenset[str]:
        return frozenset(topic for topic in (*TOPICS, GONE) if chance.random() < share)

    if chance.random() < 0.4:
        return [any_()] * members
    kinds = [any_() for _ in range(chance.randint(2, 4))]
    return [chance.choice(kinds) if chance.random() < 0.5 else any_() for _ in range(members)]


def _claims(
    chance: random.Random, partitions: Mapping[str, int], subscriptions: list[frozenset[str]]
) -> list[tuple[TopicPartition, ...]]:
    """Generate the partitions that each member reports as owned: an earlier assignment with some
    lost, duplicated, unsubscribed, deleted or never existing."""
    owned: list[set[TopicPartition]] = [set() for _ in subscriptions]
    before = range(chance.randint(0, len(subscriptions)))
    if not before:
        return [()] * len(subscriptions)
    lost, doubled = chance.choice((0.0, 0.2)), chance.choice((0.0, 0.0, 0.1))
    even = chance.random() < 0.5
    turn = 0
    for topic, count in (*partitions.items(), (GONE, 1)):
        able = [m for m in before if topic in subscriptions[m]]
        if not able or chance.random() < 0.1:
            able = list(before)
        # One partition more than there is.
        for number in range(count + (chance.random() < 0.1)):
            turn += 1
            if chance.random() >= lost:
                at = turn if even else chance.randrange(len(able))
                owned[able[at % len(able)]].add(TopicPartition(topic, number))
            if chance.random() < doubled:
                owned[chance.choice(before)].add(TopicPartition(topic, number))
    return [tuple(sorted(of)) for of in owned]


def _replicas(chance: random.Random, count: int) -> list[frozenset[str]]:
    sets = [frozenset(chance.sample(RACKS, chance.randint(0, 2))) for _ in range(3)]
    # Of some partitions nothing is known.
    return [chance.choice(sets) for _ in range(count if chance.random() < 0.8 else count // 2)]


def _loads(chance: random.Random, partitions: Mapping[str, int]) -> dict[TopicPartition, float]:
    make: Callable[[], float] = chance.choice(
        (
            lambda: 0.0,
            lambda: chance.choice((0.0, 1.0, 5.0)),
            lambda: chance.paretovariate(1.1),
            lambda: chance.choice((1e-9, 1.0, 1e9)),
        )
    )
    return {
        TopicPartition(topic, number): make()
        for topic, count in (*partitions.items(), (GONE, 2))
        for number in range(count)
        if chance.random() < 0.9
    }


# ---------------------------------------------------------------- what must hold


def check_once(assignor: Assignor, spec: GroupSpec) -> Iterator[str]:
    """Check an assignor that assigns everything at once."""
    rules = RULES[protocol_name(assignor)]
    if assignor is roundrobin_assignor or assignor is naive_assignor:
        rules |= EVEN if _same_subscription(spec) else frozenset()
    assignment = assignor(spec)
    yield from _malformed(spec, assignment)
    yield from map(str, violations(spec, assignment, rules))


def check_cooperative_sticky(assignor: Assignor, spec: GroupSpec) -> Iterator[str]:
    """Check each rebalance, then the stable assignment against the initial one."""
    for number, final in enumerate(_rounds(assignor, spec), 1):
        yield from _of_round(assignor, number, *final)
        if number > COOPERATIVE_ROUNDS:
            yield f"not settled after {COOPERATIVE_ROUNDS} rounds"
            return
    yield from (f"settled: {v}" for v in violations(spec, final[1], STICKY))


def check_weighted_sticky(assignor: Assignor, spec: GroupSpec) -> Iterator[str]:
    """Check each rebalance, its number of moves, and the loads of the stable assignment."""
    size = sum(spec.partitions[topic] for topic in spec.topics())
    for number, final in enumerate(_rounds(assignor, spec), 1):
        yield from _of_round(assignor, number, *final)
        if (taken := _taken(*final)) > max(10, size // 4):
            yield f"round {number} takes {taken} of {size} partitions"
        if number > WEIGHTED_ROUNDS:
            yield f"not settled after {WEIGHTED_ROUNDS} rounds"
            return
    if _same_subscription(spec):
        yield from _high(spec, final[1])


def _of_round(
    assignor: Assignor, number: int, spec: GroupSpec, assignment: Assignment
) -> Iterator[str]:
    found = [
        *_malformed(spec, assignment),
        *map(str, violations(spec, assignment, RULES[protocol_name(assignor)])),
    ]
    yield from (f"round {number}: {line}" for line in found)


def _rounds(assignor: Assignor, spec: GroupSpec) -> Iterator[tuple[GroupSpec, Assignment]]:
    """Yield the group and its assignment in each round, until no member revokes."""
    generation = GENERATION
    while True:
        assignment = assignor(spec)
        yield spec, assignment
        if not _let_go(spec, assignment):
            return
        generation += 1
        members = {
            m: attrs.evolve(of, owned=assignment[m], generation=generation)
            for m, of in spec.members.items()
        }
        spec = attrs.evolve(spec, members=members)


def _let_go(spec: GroupSpec, assignment: Assignment) -> bool:
    """Whether any member must revoke partitions."""
    return any(set(of.owned).difference(assignment[m]) for m, of in spec.members.items())


def _taken(spec: GroupSpec, assignment: Assignment) -> int:
    """Return the number of partitions that move away from their owners."""
    owners = {
        tp: members[0]
        for tp, members in newest_claims(spec).items()
        if len(members) == 1 and tp.topic in spec.members[members[0]].topics
    }
    stay = sum(owners.get(tp) == m for m, held in assignment.items() for tp in held)
    return len(owners) - stay


def _malformed(spec: GroupSpec, assignment: Assignment) -> Iterator[str]:
    if assignment.keys() != spec.members.keys():
        yield f"entries for {sorted(assignment)}, members are {sorted(spec.members)}"
    for member, held in assignment.items():
        if not isinstance(held, tuple) or list(held) != sorted(held):
            yield f"what {member} gets is no sorted tuple"


def _same_subscription(spec: GroupSpec) -> bool:
    there = set(spec.topics())
    return len({of.topics & there for of in spec.members.values()}) == 1


def _high(spec: GroupSpec, assignment: Assignment) -> Iterator[str]:
    """Whether the largest load exceeds what `weighted_sticky` promises."""
    load = {tp: spec.loads.get(tp, 1.0) for held in assignment.values() for tp in held}
    if not any(load.values()):
        load = dict.fromkeys(load, 1.0)
    total = math.fsum(load.values())
    capacity = {m: of.capacity for m, of in spec.members.items()}
    level = {m: math.fsum(map(load.__getitem__, h)) / capacity[m] for m, h in assignment.items()}
    fullest, emptiest = max(level, key=level.__getitem__), min(level, key=level.__getitem__)
    least = min((load[tp] for tp in assignment[fullest] if load[tp] > total / 1e15), default=0.0)
    bound = (total / sum(capacity.values()) + least / capacity[emptiest]) / 0.9
    if level[fullest] > bound * (1 + 1e-9):
        yield f"{fullest} has a level of {level[fullest]}, promised are at most {bound}"


CHECKS: tuple[tuple[Assignor, Callable[[Assignor, GroupSpec], Iterator[str]]], ...] = (
    (range_assignor, check_once),
    (roundrobin_assignor, check_once),
    (naive_assignor, check_once),
    (sticky_assignor, check_once),
    (cooperative_sticky_assignor, check_cooperative_sticky),
    (weighted_sticky(), check_weighted_sticky),
)


def check(spec: GroupSpec, *, twice: bool) -> Iterator[str]:
    """Return the violations of any assignor; `twice`: also whether the order of members and topics
    changes its result."""
    for assignor, check_with in CHECKS:
        try:
            found = list(islice(check_with(assignor, spec), 5))
            if twice and assignor(_reversed(spec)) != assignor(spec):
                found.append("another order of entries, another answer")
        except Exception as error:
            found = [f"raises {error!r}"]
        yield from (f"{protocol_name(assignor)}: {line}" for line in found)


def _reversed(spec: GroupSpec) -> GroupSpec:
    return attrs.evolve(
        spec,
        members=dict(reversed(list(spec.members.items()))),
        partitions=dict(reversed(list(spec.partitions.items()))),
        loads=dict(reversed(list(spec.loads.items()))),
    )


# ---------------------------------------------------------------- many of them


def group_of(seed: int, case: int) -> GroupSpec:
    return random_group(random.Random(f"{seed}/{case}"))


def failures(seed: int, cases: range) -> dict[int, list[str]]:
    """Return case -> violations, for the failed cases."""
    found = {case: list(check(group_of(seed, case), twice=case % 8 == 0)) for case in cases}
    return {case: lines for case, lines in found.items() if lines}


def _chunk(work: tuple[int, range]) -> tuple[int, dict[int, list[str]]]:
    seed, cases = work
    return len(cases), failures(seed, cases)


def run(seed: int, cases: int, jobs: int) -> int:
    """Return the exit code: 0 without failures."""
    chunks = [(seed, range(at, min(at + CHUNK, cases))) for at in range(0, cases, CHUNK)]
    print(f"{cases:,} groups, seed {seed}, {jobs} at a time", flush=True)
    started, done, failed = time.monotonic(), 0, 0
    with ExitStack() as stack:
        advance = stack.enter_context(_progress(cases))
        results: Iterable[tuple[int, dict[int, list[str]]]] = map(_chunk, chunks)
        if jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(jobs))
            results = pool.imap_unordered(_chunk, chunks)
        for size, found in results:
            done += size
            advance(size)
            for case, lines in found.items():
                failed += 1
                print(f"\ncase {case}:", *lines, sep="\n  ")
                print(f"again: python tests/assign/fuzz.py --seed {seed} --case {case}", flush=True)
            if failed >= MOST_FAILURES:
                break
    took = time.monotonic() - started
    print(f"{done:,} groups in {took:.1f} s, {done / took:,.0f} a second; {failed} failed")
    return 1 if failed else 0


class _progress:
    """Show a progress bar on a terminal with rich; otherwise print a line at intervals."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._bar = None
        if sys.stdout.isatty():
            try:
                from rich.progress import Progress
            except ImportError:
                return
            self._bar = Progress()

    def __enter__(self) -> Callable[[int], None]:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("groups", total=self._total)
        return self._advance

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _advance(self, size: int) -> None:
        before, self._done = self._done, self._done + size
        if self._bar is not None:
            self._bar.update(self._task, advance=size)
        elif self._done * 20 // self._total > before * 20 // self._total:
            print(f"{self._done:,} of {self._total:,}", flush=True)


def spec_to_json(spec: GroupSpec) -> str:
    """Return the spec as text, with a line for each member and topic. `spec_from_json` restores it,
    except for the racks of topics that do not exist."""
    loads: dict[str, dict[str, float]] = {}
    for (topic, number), load in sorted(spec.loads.items()):
        loads.setdefault(topic, {})[str(number)] = load
    parts: dict[str, Mapping[str, object]] = {
        "members": {name: _member_value(of) for name, of in sorted(spec.members.items())},
        "topics": {
            name: {
                "partitions": count,
                "racks": [sorted(replicas) for replicas in spec.racks[name]],
            }
            if name in spec.racks
            else count
            for name, count in sorted(spec.partitions.items())
        },
        **({"loads": loads} if loads else {}),
    }
    return "{\n" + ",\n".join(f'  "{part}": {_lines(of)}' for part, of in parts.items()) + "\n}\n"


def _lines(entries: Mapping[str, object]) -> str:
    if not entries:
        return "{}"
    lines = (f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items())
    return "{\n" + ",\n".join(lines) + "\n  }"


def _member_value(member: MemberSpec) -> dict[str, object]:
    """Return a member's topics, and its fields that differ from the default."""
    owned: dict[str, list[int]] = {}
    for topic, number in sorted(member.owned):
        owned.setdefault(topic, []).append(number)
    forms = {"owned": owned, "user_data": b64encode(member.user_data or b"").decode()}
    value: dict[str, object] = {"topics": sorted(member.topics)}
    for field in attrs.fields(MemberSpec):
        if field.default is not attrs.NOTHING and getattr(member, field.name) != field.default:
            value[field.name] = forms.get(field.name, getattr(member, field.name))
    return value


def replay(seed: int, case: int) -> int:
    """Print the group of one case, and its violations."""
    spec = group_of(seed, case)
    print(spec_to_json(spec))
    lines = list(check(spec, twice=True))
    print(*lines or ["nothing is wrong"], sep="\n")
    return 1 if lines else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument(
        "--seed", type=int, default=None, help="any number; by default another each time"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--case", type=int, default=None, help="replay this one alone")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    if options.case is not None:
        return replay(seed, options.case)
    return run(seed, options.cases, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
