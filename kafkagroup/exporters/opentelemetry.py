"""Metrics for OpenTelemetry, through its API: `pip install 'kafkagroup[opentelemetry]'`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from kafkagroup.exporters._instruments import INSTRUMENTS, Instrument, Observed, measured, samples

__all__ = ["observe"]


def observe(members: Mapping[str, Observed], meter: Meter) -> None:
    """Have a meter ask for the metrics of consumers and group members whenever it is read.

    ```python
    observe({"billing": consumer}, opentelemetry.metrics.get_meter("kafkagroup"))
    ```

    Once for all members of a process: each is told by its name, in the attribute `client`. The
    mapping is read anew each time, so members may come and go. A meter may ask from any thread.
    """
    for instrument in INSTRUMENTS:
        create = (
            meter.create_observable_counter if instrument.counts else meter.create_observable_gauge
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
    def ask(_: CallbackOptions) -> Iterable[Observation]:
        found = samples(instrument, measured(members))
        return [Observation(value, labels) for labels, value in found]

    return ask
