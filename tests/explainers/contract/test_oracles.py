"""Every method against its independent oracle in `tests/support/oracles/`."""

from __future__ import annotations

import pytest
import torch

from explainers import METHODS
from tests.support.oracles import ORACLES, VARIANTS


def test_every_method_has_an_oracle():
    assert set(METHODS) == set(ORACLES), "a method joins with its oracle in tests/support/oracles, and leaves with it"


@pytest.mark.parametrize("name", ORACLES | VARIANTS)
def test_method_agrees_with_its_oracle(name):
    oracle = (ORACLES | VARIANTS)[name]
    net, images = oracle.net(), oracle.images()
    where = {"layer": oracle.layer} if oracle.layer else {}
    expected = oracle.expected(net, images, oracle.classes)

    actual = METHODS[name.split()[0]](net, images, oracle.classes, **where, **oracle.options)

    torch.testing.assert_close(actual, expected, rtol=oracle.rtol, atol=oracle.atol)
    assert oracle.bites(expected), f"the case of {name} ({oracle.truth}) cannot tell right from wrong"
