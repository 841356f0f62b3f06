"""Controls: baselines that depend on the image at most, never on the network or the class."""

from __future__ import annotations

import pytest
import torch

from explainers import BadOption, BadTarget, center_control, edge_control, random_control
from tests.support.nets import curved, random_images, residual


@pytest.mark.parametrize("control", [random_control, edge_control, center_control])
def test_controls_ignore_network_and_class(control):
    x = random_images()
    first = control(curved(), x, [2, 0, 5])
    assert first.shape == (3, 12, 16) and first.std() > 0
    assert torch.equal(control(residual(), x, 1), first)
    with pytest.raises(BadTarget, match="99"):
        control(curved(), x, 99)


def test_random_control_has_the_given_cells_and_depends_on_the_seed():
    x, net = random_images(2), curved()
    assert len(random_control(net, x, cells=3)[0].unique()) == 3 * 4
    assert len(random_control(net, x, cells=4096)[0].unique()) == 12 * 16
    assert not torch.equal(random_control(net, x, seed=1), random_control(net, x, seed=2))
    before = torch.get_rng_state()
    random_control(net, x)
    assert torch.equal(before, torch.get_rng_state())


def test_the_width_of_the_center_blob_and_the_number_of_cells_are_options():
    assert center_control(curved(), random_images(), width=0.05).sum() < center_control(curved(), random_images()).sum()
    for control, wrong in ((random_control, {"cells": 0}), (center_control, {"width": 0.0})):
        with pytest.raises(BadOption, match=next(iter(wrong))):
            control(curved(), random_images(), 1, **wrong)
