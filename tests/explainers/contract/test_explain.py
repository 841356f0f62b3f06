"""`explain` and `Explanation`: the computation and its results, saved and loaded."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest
import torch
from PIL import Image

from explainers import METHODS, Explanation, explain
from tests.support.calls import NAMES, call, small
from tests.support.nets import random_images, residual
from tests.support.traces import nothing_left

each = pytest.mark.parametrize("name", NAMES)


def plain_call(name):
    return {"relu": False} if "relu" in METHODS[name].options else {}


@pytest.mark.sample
@each
def test_explanation_is_complete(name):
    net, x = residual(), random_images()
    with nothing_left(net, x):
        e = explain(name, net, x, **small(name))
    n = len(x)
    assert isinstance(e, Explanation) and e.method == name
    assert e.map.ndim == 3 and len(e.map) == n and not e.map.requires_grad
    torch.testing.assert_close(e.raw, call(name, net, x, **plain_call(name)))
    if METHODS[name].returns in ("grid", "heat"):
        torch.testing.assert_close(e.map, call(name, net, x))
    if METHODS[name].returns == "pixels":  # reduced over color channels
        ways = e.raw.sum(1).abs(), e.raw.abs().amax(1), e.raw.norm(dim=1)
        assert any(torch.allclose(e.map.abs(), how) for how in ways)
    assert (e.layer is not None) == METHODS[name].takes_layer
    assert len(e.statistics) == len(e.findings) == n and e.seconds > 0
    for row, one in zip(e.statistics, e.map, strict=True):
        assert {"min", "sum", "negative_share", "entropy"} <= set(row) and one[row["peak"]] == one.max()
    if METHODS[name].reads_class:
        assert e.target == net(x).argmax(1).tolist()
        torch.testing.assert_close(e.scores, net(x).detach())
    assert set(METHODS[name].options) <= set(e.options) and small(name).items() <= e.options.items()


def test_upsample_is_bilinear_without_clipping():
    e = explain("hires_cam", residual(), random_images(), 2, layer="layer2")
    expected = torch.nn.functional.interpolate(e.map[:, None], (24, 32), mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(e.upsample((24, 32)), expected)
    assert e.upsample((24, 32)).min() < 0


def test_overlay_requires_one_image_per_map():
    e = explain("grad_cam", residual(), random_images(2))
    image = Image.new("RGB", (64, 48), (40, 90, 120))
    shown = e.overlay([image, image])
    assert [each.size for each in shown] == [(64, 48)] * 2
    assert e.overlay([image, image], opacity=0)[0].tobytes() == image.tobytes()
    with pytest.raises(ValueError, match="2 maps"):
        e.overlay([image])


@pytest.mark.sample
@each
def test_saving_and_loading_round_trips(name, tmp_path):
    e = explain(name, residual(), random_images(), 2, **small(name))
    e.save(str(tmp_path / "e.npz"))
    again = Explanation.load(str(tmp_path / "e.npz"))
    for row in again.statistics:
        row["peak"] = tuple(row["peak"])
    for field in dataclasses.fields(Explanation):
        a, b = getattr(e, field.name), getattr(again, field.name)
        if field.name == "images":  # not written
            assert b is None
            continue
        same = torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
        assert same, field.name


def test_explanations_have_a_short_repr_and_keep_no_reference_to_the_model():
    net = residual()
    e = explain("grad_cam", net, random_images())
    assert "grad_cam" in repr(e) and e.layer in repr(e) and "6x8" in repr(e) and "tensor(" not in repr(e)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None and e.map.any()
