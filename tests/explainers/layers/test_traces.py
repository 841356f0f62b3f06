"""Graphs and tensors that are alive are counted."""

from __future__ import annotations

import torch

from tests.support.traces import Marker, graphs_alive, tensors_alive


def test_graphs_and_tensors_kept_alive_are_counted():
    kept = Marker()(torch.ones(2, requires_grad=True)).sum()
    assert graphs_alive() == 1
    del kept
    assert graphs_alive() == 0

    before = tensors_alive()
    kept = [torch.ones(1)]
    assert tensors_alive() == before + len(kept)
