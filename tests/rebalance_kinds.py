"""The kinds of rebalances, as options of a consumer, and a fixture of each."""

from __future__ import annotations

from typing import Any

import pytest

from kafkagroup.assign import cooperative_sticky_assignor

KINDS: dict[str, dict[str, Any]] = {
    "eager": {},
    "cooperative": {"assignors": [cooperative_sticky_assignor]},
    "consumer": {"group_protocol": "consumer"},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of each kind in turn."""
    return KINDS[request.param]
