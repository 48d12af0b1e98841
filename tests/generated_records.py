"""Records as hypothesis generates them, and the settings of the tests that take them."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from kafkagroup.wire.compression import Codec
from kafkagroup.wire.records import NewRecord

repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=200)
codecs = pytest.mark.parametrize("codec", list(Codec), ids=lambda c: c.name)
any_bytes = st.none() | st.binary(max_size=200)
any_headers = st.lists(st.tuples(st.text(max_size=10), any_bytes), max_size=4).map(tuple)
any_records = st.lists(
    st.builds(NewRecord, any_bytes, any_bytes, st.integers(0, 2**42), any_headers),
    min_size=1,
    max_size=20,
)
