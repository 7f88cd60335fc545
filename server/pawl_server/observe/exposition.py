"""Writes metrics as Prometheus and OpenMetrics want them. Only this module knows the client library."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as LibraryFamily

from pawl_server.domain.tally import Histogram
from pawl_server.observe.collect import Family

Encoder = Callable[[Any], bytes]
_END = b"# EOF\n"
_SIMPLE = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class Exposition:
    """Renders families, and beside them what the library knows of the process and its garbage collector."""

    def __init__(self) -> None:
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        GCCollector(registry=self._process)

    async def render(self, families: Iterable[Family], accept: str) -> tuple[bytes, str]:
        """The page in the form that the header Accept asks for, and its content type.

        Each family is a step of its own: other tasks of the event loop run between them.
        """
        encode, content_type = choose_encoder(accept)
        parts = []
        for family in itertools.chain(map(_converted, families), self._process.collect()):
            parts.append(encode(_Alone(family)).removesuffix(_END))
            await asyncio.sleep(0)
        if "openmetrics" in content_type:
            parts.append(_END)
        return b"".join(parts), content_type


class _Alone:
    """A registry of one family."""

    def __init__(self, family: LibraryFamily) -> None:
        self._family = family

    def collect(self) -> Iterator[LibraryFamily]:
        yield self._family


def _converted(family: Family) -> LibraryFamily:
    metric, samples = family
    if metric.kind == "histogram":
        buckets = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
        for labels, value in samples.items():
            assert isinstance(value, Histogram)
            buckets.add_metric(labels, _buckets(value), value.total)
        return buckets
    plain: Any = _SIMPLE[metric.kind](metric.name, metric.text, labels=metric.labels)
    for labels, value in samples.items():
        plain.add_metric(labels, float(value))  # pyright: ignore[reportArgumentType]
    return plain


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, itertools.accumulate(histogram.counts), strict=True))
