"""Metrics for OpenTelemetry, through its API: `pip install 'kafkagroup[opentelemetry]'`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kafkagroup._extras import require
from kafkagroup.exporters._instruments import INSTRUMENTS, Instrument, Observed, measured, samples

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

__all__ = ["observe"]


def observe(members: Mapping[str, Observed], meter: Meter) -> None:
    """Create observable instruments for the metrics of consumers, producers, group members,
    elections and shards.

    ```python
    observe({"billing": consumer}, opentelemetry.metrics.get_meter("kafkagroup"))
    ```

    Call this once for all members of a process: the attribute `client` has each member's name. The
    mapping is read at each collection, so members may be added and removed. A meter may collect in
    any thread.
    """
    require("opentelemetry.metrics", what="observe()", extra="opentelemetry")
    for instrument in INSTRUMENTS:
        create = (
            meter.create_observable_counter
            if instrument.is_counter
            else meter.create_observable_gauge
        )
        create(
            f"kafkagroup.{instrument.name}",
            callbacks=[_callback(members, instrument)],
            unit=instrument.unit,
            description=instrument.description,
        )


def _callback(
    members: Mapping[str, Observed], instrument: Instrument
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    # Not at the top: help() and editors import this module, also where OpenTelemetry is missing.
    from opentelemetry.metrics import Observation

    def observations(_: CallbackOptions) -> Iterable[Observation]:
        found = samples(instrument, measured(members))
        return [Observation(value, labels) for labels, value in found]

    return observations
