"""`explain` and `Explanation`: the computation and its results, saved and loaded, also if the method was stopped."""

from __future__ import annotations

import dataclasses
import gc
import io
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import explainers
from explainers import METHODS, BadImages, BadOption, Explanation, explain, smooth
from explainers.explanation.npz import from_npy
from tests.support.calls import NAMES, call, small
from tests.support.kinds import MIXING, Applied
from tests.support.nets import Written, plain, random_images, rel, residual, settle
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


@pytest.mark.sample
@each
def test_saving_and_loading_round_trips(name, tmp_path):
    e = explain(name, residual(), random_images(), 2, **small(name))
    e.save(str(tmp_path / "e.npz"))
    again = Explanation.load(str(tmp_path / "e.npz"))
    for field in dataclasses.fields(Explanation):
        a, b = getattr(e, field.name), getattr(again, field.name)
        if field.name == "images":  # not written
            assert b is None
            continue
        same = torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
        assert same, field.name


def test_arrays_of_numpy_are_read_or_refused():
    values = np.arange(6.0).reshape(2, 3)

    def written(array, version=(1, 0)):
        np.lib.format.write_array(file := io.BytesIO(), array, version)
        return file.getvalue()

    assert from_npy(written(values)).tolist() == values.tolist()
    wrong = written(np.asfortranarray(values)), written(1j * values), written(values, (2, 0))
    for content in (b"", written(values)[:10], b"PNG" + bytes(20), *wrong):
        with pytest.raises(explainers.ExplainerError):
            from_npy(content)


def test_explanations_have_a_short_repr_and_keep_no_reference_to_the_model():
    net = residual()
    e = explain("grad_cam", net, random_images())
    assert "grad_cam" in repr(e) and e.layer in repr(e) and "6x8" in repr(e) and "tensor(" not in repr(e)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None and e.map.any()


# Maps of methods that were stopped


IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
LONG = [name for name, method in METHODS.items() if method.long and not method.needs]


def network() -> nn.Module:
    return plain().float()


def codes(found: Explanation) -> set[str]:
    return {finding.code for row in found.findings for finding in row}


@pytest.mark.parametrize("method", LONG)
def test_a_stopped_method_states_its_samples_and_a_complete_one_too(method: str) -> None:
    net, options = network(), small(method)
    cut = explain(method, net, IMAGES, 1, budget=1e-6, batch_size=1, **options)
    assert cut.done < cut.total and not cut.is_complete
    assert "stopped_early" in codes(cut)
    assert not codes(cut) & {"flat", "no_effect", "nothing_positive", "search_failed", "not_converged", "incomplete"}
    finding = cut.findings[1][0]
    assert f"after {cut.done:,} of {cut.total:,} samples" in finding.sentence and "budget" in finding.sentence
    assert f"{cut.done:,} of {cut.total:,} samples" in repr(cut)

    whole = explain(method, net, IMAGES, 1, **options, **finding.remedy)
    assert whole.is_complete and 1 <= whole.done == whole.total and "stopped_early" not in codes(whole)
    assert "samples," not in repr(whole)


STARTS = torch.rand(4, 3, 24, 24, generator=torch.Generator().manual_seed(2))
FEWER = [
    # Options, the sample to stop at, and the options of the same samples
    *((name, {"samples": 9}, 4, {"samples": 4}) for name in ("smooth_grad", "smooth_grad_squared", "var_grad")),
    ("sess", {"scales": 3}, 1, {"scales": 1}),
    ("deep_lift_shap", {"baseline": STARTS}, 2, {"baseline": STARTS[:2]}),
    ("rex", {"steps": 3}, 300, {"steps": 1}),
]


@pytest.mark.parametrize(("method", "options", "at", "fewer"), FEWER, ids=[case[0] for case in FEWER])
def test_a_stopped_map_is_that_of_fewer_samples(method, options, at, fewer) -> None:
    """The map that was reported last is the result."""
    net, maps = network(), []
    size = 100 if method == "rex" else 1
    stopped = explain(
        method, net, IMAGES, 1, batch_size=size, progress=lambda p: maps.append(p.map) or p.done < at, **options
    )
    torch.testing.assert_close(stopped.raw, METHODS[method](net, IMAGES, 1, **fewer), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(maps[-1], stopped.map)


def test_progress_that_returns_false_is_named() -> None:
    found = explain("occlusion", network(), IMAGES, 1, batch_size=3, progress=lambda step: step.done < 6)
    assert (found.done, found.is_complete) == (6, False)
    finding = found.findings[0][0]
    assert "after 6 of 144 samples" in finding.sentence and "progress" in finding.sentence and not finding.remedy
    assert explain("grad_cam", network(), IMAGES, 1).done == 1
    smoothed = smooth("saliency", sigma=0.1, samples=9)(network(), IMAGES, 1, progress=lambda step: step.done < 3)
    assert (smoothed.samples, smoothed.total) == (3, 9) and "3 of 9 samples" in repr(smoothed)
    last = explain("occlusion", network(), IMAGES, 1, batch_size=144, progress=lambda step: False)
    assert last.is_complete, "it was stopped after its last sample"


def test_the_number_of_samples_is_that_of_each_image() -> None:
    """Also of a network whose rows depend on each other, so that each image runs alone."""
    for net in (network(), Applied(MIXING["mean"])):
        for method in ("rise", "smooth_grad_cam_pp", "score_cam"):
            one, two = (explain(method, net, IMAGES[:n], 1, **small(method)) for n in (1, 2))
            assert one.total == one.done == two.total == two.done, method


# Batches with images that cannot be explained


def overflowing() -> nn.Module:
    """Returns infinite scores for bright images. All of its operations have rules for LRP."""

    def forward(self, x):
        return self.head((self.features(x) * 1e4 * 1e4).mean((2, 3)) * 1e-8)

    features = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1), nn.ReLU())
    return settle(Written(forward, features=features, head=nn.Linear(6, 4)))


def batch(kind: str) -> torch.Tensor:
    images = torch.rand(3, 3, 12, 16, generator=torch.Generator().manual_seed(1))
    if kind == "overflow":
        images[1] *= 3e37
    else:
        images[1, 2, 5, 7] = torch.nan if kind == "nan" else torch.inf
    return images


@pytest.mark.sample
@pytest.mark.parametrize(
    "name", [name for name, each in METHODS.items() if not each.needs or not each.needs(overflowing())]
)
@pytest.mark.parametrize("kind", ["nan", "overflow"])
def test_the_other_images_are_explained(name, kind):
    net, images = overflowing(), batch(kind)
    found = METHODS[name](net, images, [0, 1, 2], **small(name))
    expected = METHODS[name](net, images[[0, 2]], [0, 2], **small(name))
    assert found.shape == (3, *expected.shape[1:]) and rel(found[[0, 2]], expected) < 1e-4
    if kind == "nan" or METHODS[name].reads_class:
        assert found[1].isnan().all()


@pytest.mark.parametrize("name", ["saliency", "grad_cam", "eigen_cam", "rise", "token_pca"])
@pytest.mark.parametrize("target", [None, [0, 1, 2]])
def test_explain_reports_the_image_that_was_left_out(name, target):
    net, images = overflowing(), batch("inf")
    found = explain(name, net, images, target, **small(name))
    alone = explain(name, net, images[[0, 2]], None if target is None else [0, 2], **small(name))

    assert [[each.code for each in row] for row in found.findings[::2]] == [[f.code for f in r] for r in alone.findings]
    (finding,) = found.findings[1]
    assert finding.code == "non_finite" and "Image 1 " in finding.sentence
    assert "inf at channel 2, row 5, column 7" in finding.sentence
    assert rel(found.map[[0, 2]], alone.map) < 1e-5 and found.map[1].isnan().all() and found.raw[1].isnan().all()
    assert found.statistics[0].keys() == alone.statistics[0].keys()
    assert found.statistics[0]["max"] == pytest.approx(alone.statistics[0]["max"], rel=1e-3)
    assert found.statistics[1]["non_finite"] == found.raw[1].numel()
    assert "nan" not in repr(found) and torch.equal(found.images, images)
    if found.target is not None:
        assert found.target == ([alone.target[0], -1, alone.target[1]] if target is None else target)


def test_options_and_functions_of_an_image_stay_with_it():
    net, images = overflowing(), batch("nan")
    baseline = torch.rand(3, 3, 12, 16)
    found = explainers.integrated_gradients(net, images, [0, 1, 2], steps=4, baseline=baseline)
    alone = explainers.integrated_gradients(net, images[2:], 2, steps=4, baseline=baseline[2:])
    assert rel(found[2:], alone) < 1e-5
    whole = explain("integrated_gradients", net, images, 1, steps=4, baseline=baseline)
    assert whole.keywords["baseline"] is baseline
    with pytest.raises(explainers.BadTarget, match="Class 7 does not exist"):
        explainers.saliency(net, images, [0, 1, 7])


def test_a_batch_of_which_no_image_can_be_left_out_is_an_error():
    """None is finite, or other inputs have a row for each image."""
    net, images, rows = overflowing(), batch("nan"), torch.rand(3, 3, 1, 1)
    for function in (explainers.saliency, lambda *given, **options: explain("saliency", *given, **options)):
        with pytest.raises(BadImages, match="contains nan at image 0, channel 2, row 5, column 7"):
            function(net, images[1:2].expand(2, -1, -1, -1), 1)
        with pytest.raises(BadImages, match="contains nan at image 1"):
            function(net, images, 1, forward=lambda x: net(x + rows[: len(x)]))


def test_maps_of_images_that_failed_are_drawn_but_not_evaluated():
    net, images = overflowing(), batch("nan")
    found = explain("saliency", net, images, 1)
    assert len(found.overlay(torch.rand(3, 3, 12, 16))) == 3
    with pytest.raises(BadOption, match="leave out the images 1"):
        explainers.evaluate(net, batch("overflow") * 1e-37, found)
