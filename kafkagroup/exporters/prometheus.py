"""Metrics for Prometheus, through `prometheus_client`: `pip install 'kafkagroup[prometheus]'`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kafkagroup._extras import require
from kafkagroup.exporters._instruments import INSTRUMENTS, Instrument, Observed, measured, samples

if TYPE_CHECKING:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
else:
    # A registry takes any object with `collect`. help() and editors import this module, also where
    # prometheus_client is missing.
    Collector = object

__all__ = ["GroupCollector"]


class GroupCollector(Collector):
    """The metrics of consumers, producers, group members, elections and shards, read at each
    scrape.

    ```python
    prometheus_client.REGISTRY.register(GroupCollector({"billing": consumer}))
    ```

    Use one collector for all members of a process: the label `client` has each member's name. The
    mapping is read at each scrape, so members may be added and removed. A scrape may run in any
    thread.
    """

    def __init__(self, members: Mapping[str, Observed]) -> None:
        require("prometheus_client", what="GroupCollector", extra="prometheus")
        self._members = members

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without values: the registry calls this before a member runs."""
        return map(_family, INSTRUMENTS)

    def collect(self) -> Iterator[Metric]:
        """Return all current values."""
        metrics = measured(self._members)
        for instrument in INSTRUMENTS:
            family = _family(instrument)
            for labels, value in samples(instrument, metrics):
                family.add_metric([labels[name] for name in _labels(instrument)], value)
            yield family


def _family(instrument: Instrument) -> GaugeMetricFamily | CounterMetricFamily:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if instrument.is_counter else GaugeMetricFamily
    name = f"kafkagroup_{instrument.name}"
    return kind(name, instrument.description, labels=_labels(instrument))


def _labels(instrument: Instrument) -> tuple[str, ...]:
    return ("client", *instrument.labels)
