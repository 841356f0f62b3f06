"""Networks whose control flow depends on the image: what one image shows about them need not hold for another one."""

from __future__ import annotations

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torchvision.ops import nms

import explainers
from explainers import METHODS, ExplainerError, UnsupportedModel, explain, grad_cam, integrated_gradients, saliency
from tests.support import deciding_nets as nets
from tests.support.kinds import BYTES_AND_FRACTIONS, LOUD_AND_FAINT, Applied
from tests.support.nets import rel

BYTES = nets.lights() * BYTES_AND_FRACTIONS


def assert_at_spot(found: explainers.Explanation, row: int, scan: int) -> None:
    spot = divmod(int(found.upsample((64, 64))[row].abs().argmax()), 64)
    assert all(abs(at - (6 + 32 * scan)) <= 3 for at in spot)


def test_the_map_of_a_cropped_scan_is_where_its_content_is():
    """The same network, one scan after the other and both at once: the peaks are at the bright spots."""
    for order in ((0, 1), (1, 0)):
        net = nets.AutoCrop()
        for n in order:
            assert_at_spot(explain("grad_cam", net, nets.scans()[n : n + 1], 1, layer="first", relu=False), 0, n)
        both = explain("grad_cam", net, nets.scans()[list(order)], 1, layer="first", relu=False)
        for row, n in enumerate(order):
            assert_at_spot(both, row, n)


@pytest.mark.parametrize("first", [0, 1])
def test_a_threshold_applies_to_each_point_of_a_path_alone(first):
    """The points of a path are below and above the threshold; in one batch, all of them would be divided."""
    net, x = nets.Scaled(), BYTES[:1]
    saliency(net, BYTES[first : first + 1], 1)
    points, weights = numpy.polynomial.legendre.leggauss(6)
    total = torch.zeros_like(x)
    for at, weight in zip((points + 1) / 2, weights / 2, strict=True):
        leaf = (float(at) * x).requires_grad_()
        total += float(weight) * torch.autograd.grad(net(leaf * 1)[0, 1], leaf)[0]
    assert rel(integrated_gradients(net, x, 1, steps=6), total * x) < 1e-4


@torch.jit.script
def is_bright(x: torch.Tensor) -> bool:
    return bool(x.mean() > 0.2)


READS = {
    "item": lambda x: x.max().item(),
    "comparison": lambda x: bool(x.mean() > 0.2),
    "int": lambda x: int(x.sum()),
    "mask": lambda x: x[x > 0],
    "where": lambda x: torch.where(x > 0),
    "unique": lambda x: x.round().unique(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "repeats": lambda x: torch.repeat_interleave(x.round().abs().long().flatten()[:4]),
    "equal": lambda x: torch.equal(x, x.flip(0)),
    "slice": lambda x: x[..., : x.flatten().argmax() % 3],
    "non-maximum suppression": lambda x: nms(4 * x[0, 0, :, :4].sort(-1).values, x[0, 1, :, 0], 0.5),
    "packed sequences": lambda x: pack_padded_sequence(
        x[:, 0], (x[:, 0, :, 0] > -9).sum(1), batch_first=True, enforce_sorted=False
    ),
    "a sparse tensor": lambda x: x.relu().to_sparse()._nnz(),
    "scripted": lambda x: is_bright(x),
    "numpy": lambda x: x.detach().cpu().numpy(),
    "array": lambda x: numpy.asarray(x.detach().cpu()),
    "list": lambda x: x.mean((1, 2, 3)).tolist(),
    "a buffer made of it": lambda x: torch.zeros(3).copy_(x.detach()[0, :, 0, 0]).sum().item(),
}
PARAMETER = nn.Parameter(torch.tensor(2.0))
HARMLESS = {
    "nothing": lambda x: None,
    "isnan": lambda x: bool(torch.isnan(x).any()),
    "isfinite": lambda x: bool(torch.isfinite(x).all()),
    "isinf of a sum": lambda x: x.sum().isinf().item(),
    "not equal to itself": lambda x: bool((x != x).any()),
    "shape": lambda x: x.shape[0] + x.numel() + len(x),
    "zeros": lambda x: torch.zeros_like(x).sum().item(),
    "a parameter": lambda x: x * PARAMETER.item(),
    "values up to a limit": lambda x: torch.where(x > 100, x, x.clamp(max=100)),
    "constant": lambda x: torch.arange(5).sum().item(),
    "masked assignment": lambda x: x.clone().masked_fill(x > 0, 0),
    "assignment by a mask": lambda x: x.clone().__setitem__(x > 0, 0),
    "a sort": lambda x: x.sort(-1).values.topk(2).indices,
    "one_hot": lambda x: F.one_hot(x.argmax(-1), 32),
    "a distribution": lambda x: torch.distributions.Normal(x, torch.ones_like(x)).mean,
}


def codes(net):
    return {finding.code for finding in explain("saliency", net, nets.lights(), 1).findings[0]}


def test_every_way_to_read_the_image_is_noticed_and_checks_are_no_decisions():
    """The result of the function has no effect."""
    for kind, read in (READS | HARMLESS).items():
        found = codes(Applied(lambda x, read=read: (read(x), x)[1]))
        assert ("decides_by_image" in found) == (kind in READS) and (kind in READS or "rows_depend" not in found), kind
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).eval()
    assert not {"decides_by_image", "rows_depend"} & codes(net)


def test_a_layer_that_does_not_run_for_an_image_is_refused_with_the_reason():
    net, images = nets.EarlyExit(), nets.lights() * LOUD_AND_FAINT
    with pytest.raises(ExplainerError, match="Image 0 of the batch.*'second' did not run.*decides by the values"):
        grad_cam(net, images, 1, layer="second")
    with pytest.raises(UnsupportedModel, match="first image is 'first', that of another one 'relu'"):
        grad_cam(net, images, 1)
    assert grad_cam(net, images, 1, layer="first").shape == (2, 8, 8)


def test_the_receptive_field_before_a_decision_is_known():
    class Late(nets.Conv):
        def between(self, x):
            return x.flip(3) if x.mean() > 0.1 else x

    net = Late()
    layers = {layer.name: layer for layer in explainers.list_layers(net, nets.lights())}
    assert layers["first"].receptive_field((1, 1)) == (4, 4, 8, 8)
    with pytest.raises(UnsupportedModel, match="'second' depends on the image.*item"):
        layers["second"].receptive_field((1, 1))


@pytest.mark.parametrize("stop", [None, 2])
def test_progress_of_a_batch_that_runs_image_by_image(stop):
    seen = []

    def progress(partial):
        seen.append(partial)
        return stop is None or len(seen) < stop

    found = METHODS["rise"](nets.Scaled(), BYTES, 1, samples=6, batch_size=2, progress=progress, budget=60.0)
    fractions = [each.fraction for each in seen]
    assert fractions == sorted(fractions) and all(each.map.shape == found.shape == (2, 32, 32) for each in seen)
    assert len(seen) == stop if stop else fractions[-1] == 1
    whole = explain("rise", nets.Scaled(), BYTES, 1, samples=6, batch_size=2, progress=lambda step: stop is None)
    assert (whole.done == whole.total) is (stop is None)
    assert all(("stopped_early" in {each.code for each in own}) is bool(stop) for own in whole.findings)


def test_partial_maps_of_earlier_images_are_reduced_over_channels_as_the_others_are():
    seen = []
    found = explain("smooth_grad", nets.Scaled(), BYTES, 1, samples=4, progress=seen.append)
    torch.testing.assert_close(seen[-1].map, found.map)
    torch.testing.assert_close(found.map, found.raw.abs().amax(1))


def test_options_with_one_entry_for_each_image_are_divided():
    net, image = nets.Scaled(), 100 * nets.lights()[1:]
    images = image.repeat(2, 1, 1, 1)
    baseline = torch.stack([torch.zeros(3, 32, 32), torch.ones(3, 32, 32)])
    labels = torch.arange(4).view(2, 2).repeat_interleave(16, 0).repeat_interleave(16, 1).expand(2, -1, -1).contiguous()
    for name, option, values, others in (
        ("occlusion", "baseline", baseline, {"window": 16}),
        ("integrated_gradients", "baseline", baseline, {"steps": 3}),
        ("feature_ablation", "masks", labels, {}),
        ("feature_ablation", "masks", F.one_hot(labels, 4).movedim(-1, 1).bool(), {}),
        ("xrai", "segments", labels, {"steps": 3}),
    ):
        both = METHODS[name](net, images, 1, **{option: values}, **others)
        alone = [METHODS[name](net, image, 1, **{option: each}, **others) for each in values.split(1)]
        assert rel(both, torch.cat(alone)) < 1e-5, name
    shared, alone = (METHODS["deep_lift_shap"](net, each, 1, baseline=2 + baseline) for each in (images, image))
    assert rel(shared[:1], alone) < 1e-5


def test_a_decision_for_images_of_one_size_only_is_noticed():
    class Large(nets.Conv):
        def before(self, x):
            return x.flip(3) if x.shape[-1] > 32 and x.mean() > 0 else x

    net, large = Large(), nets.lights(size=48)
    explain("grad_cam", net, nets.lights(), 1)
    found = explain("grad_cam", net, large, 1)
    alone = [grad_cam(Large(), image, 1) for image in large.split(1)]
    assert "decides_by_image" in [finding.code for finding in found.findings[0]]
    assert rel(found.map, torch.cat(alone)) < 1e-5
    net, one = Large(), large[:1]
    for images in (nets.lights(), one):
        saliency(net, images, 1)  # does not look for decisions in another size
    for method in ("grad_cam", "saliency"):  # what the first one finds out, the second one knows
        assert "decides_by_image" in [finding.code for finding in explain(method, net, one, 1).findings[0]]
