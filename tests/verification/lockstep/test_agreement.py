"""The embedded coordinator answers as Apache's does, request by request."""

import pytest
from verification.lockstep.many import run_one
from verification.lockstep.pairs import apache_and_embedded

from kafkagroup.testing.local import LocalKafkaUnavailable

pytestmark = pytest.mark.slow

SCRIPTS = 500
"""In each of the tests; `make lockstep` runs more."""


@pytest.fixture(scope="module")
def pair():
    try:
        apache, embedded = apache_and_embedded()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"NOT COMPARED with Apache's coordinator: {error}")
    with apache:
        yield apache, embedded


@pytest.mark.parametrize("start", [0, 100_000])
def test_the_responses_to_random_requests_are_equal(pair, start):
    results = (run_one(seed, pair) for seed in range(start, start + SCRIPTS))
    diverging = [f"seed {r.seed}: {r.kind}\n{r.divergence}" for r in results if r.kind]
    assert diverging == []
