"""The plan for a cluster: the speed where one resource limits it."""

from __future__ import annotations

import pytest

from benchmarks.data_sets.plan import CPUS, EXPLAIN, LIST, PROCESS, Cluster, Costs, speed

COSTS = Costs(1e-6, 2e-3, 1e-3, 1e-3, 20e-3, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("change", "cluster", "limit", "rate"),
    [
        ({}, Cluster(2, 32, 1, 100), EXPLAIN, 2 / 1e-3),
        ({"decode_image": 50e-3}, Cluster(2, 32, 1, 100), CPUS, 64 / (50e-3 + 1e-3 / 16 + 20e-3 / 512)),
        ({"list_image": 5e-3}, Cluster(2, 64, 4, 1), LIST, 1 / 5e-3),
        ({"take_batch": 16e-3}, Cluster(2, 64, 4, 100), PROCESS, 1 / (1e-3 + 1e-4 / 512)),
    ],
)
def test_limiting_resource(change, cluster, limit, rate):
    """Oracle: the number of servers divided by the seconds of an image."""
    found, busy = speed(Costs(**{**vars(COSTS), **change}), cluster, 16, 512)
    assert max(busy, key=lambda name: busy[name]) == limit
    assert found == pytest.approx(rate, rel=1e-9) and busy[limit] == pytest.approx(1, rel=1e-9)
