"""Readings of a server's metrics, as Prometheus would take them.

    before = await read(handle)
    …
    after = await read(handle)
    assert after.rose(before, catalogue.CLAIMS) == 1

Fixture (imported by conftest.py files): `watched`, a server with metrics and a client.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pawl_server.app import Handle, running
from pawl_server.observe.catalogue import Metric
from tests.support.api import Api
from tests.support.invariants import violations_everywhere
from tests.support.redis_server import RedisServer
from tests.support.server import settings_for
from tests.support.wait import wait_until

QUICK = {"beat_interval_ms": 200, "delivery_timeout_ms": 300, "server_name": "quick"}
"""Settings of a server whose beats and delivery timeout are short."""


@dataclass(frozen=True)
class Reading:
    """Every sample of one page: its value by name and labels. A histogram stands for its count."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def of(cls, page: str) -> Reading:
        """Reads a page in Prometheus' text format."""
        families = text_string_to_metric_families(page)
        return cls(
            {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in families
                for sample in family.samples
            }
        )

    def __contains__(self, metric: Metric) -> bool:
        return any(name == _name(metric) for name, _ in self.samples)

    def get(self, metric: Metric, *labels: str) -> float:
        """The value with these labels, in the metric's order; 0.0 if there is none yet."""
        assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}"
        wanted = frozenset(zip(metric.labels, labels, strict=True))
        return self.samples.get((_name(metric), wanted), 0.0)

    def rose(self, before: Reading, metric: Metric, *labels: str) -> float:
        """By how much it is above an earlier reading."""
        return self.get(metric, *labels) - before.get(metric, *labels)

    def labels(self, metric: Metric) -> Iterator[tuple[str, ...]]:
        """The labels of all samples of a metric."""
        for name, labels in self.samples:
            if name == _name(metric):
                found = dict(labels)
                yield tuple(found[label] for label in metric.labels)


def _name(metric: Metric) -> str:
    return f"{metric.name}_count" if metric.kind == "histogram" else metric.name


async def read(handle: Handle) -> Reading:
    """What a scrape would get now."""
    assert handle.metrics is not None, "the server has no metrics_address"
    page, _ = await handle.metrics.page()
    return Reading.of(page.decode())


@contextlib.asynccontextmanager
async def observed(redis: RedisServer, url: str, **fields: Any) -> AsyncIterator[tuple[Handle, Api]]:
    """A server with metrics, and a client of it."""
    settings = settings_for(url, metrics_address="127.0.0.1:0", **fields)
    async with running(settings) as handle, Api(handle.address) as api:
        yield handle, api
    assert violations_everywhere(redis) == []


@pytest.fixture
async def watched(redis_server: RedisServer, redis_url: str) -> AsyncIterator[tuple[Handle, Api]]:
    """A server with metrics and short beats."""
    async with observed(redis_server, redis_url, **QUICK) as both:
        yield both


async def settled(handle: Handle, metric: Metric, value: float, *labels: str) -> Reading:
    """A reading in which the metric has this value."""

    async def look() -> Reading | None:
        reading = await read(handle)
        return reading if reading.get(metric, *labels) == value else None

    found = await wait_until(look, what=f"{metric.name} {labels} is {value}")
    assert found is not None
    return found
