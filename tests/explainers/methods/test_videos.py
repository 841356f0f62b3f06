"""All methods on videos and volumes [N, C, T, H, W]: against the same network on images, and by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import METHODS, BadImages, BadOption, BadTarget
from explainers.checks.fixtures import tiny_transformer
from tests.support.nets import rel
from tests.support.oracles import occlusion_by_hand

CLIPS = torch.randn(2, 3, 5, 10, 14, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
FAST: dict[str, Any] = {"samples": 6, "steps": 5, "cells": 2, "anchors": 1, "masks": "grid"}


def images_network() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    first[1].running_mean.uniform_(-1.0, 1.0)
    first[1].running_var.uniform_(0.5, 2.0)
    return nn.Sequential(*first, *second).double().eval()


def inflate(net: nn.Module) -> nn.Module:
    """Return the same network for videos, whose operations do not mix frames before the pooling."""
    new = copy.deepcopy(net)
    for name, module in list(new.named_modules()):
        other: nn.Module
        if isinstance(module, nn.Conv2d):
            sizes = (1, *module.kernel_size), (1, *module.stride), (0, *module.padding)
            other = nn.Conv3d(module.in_channels, module.out_channels, *sizes)
            other.weight.data, other.bias.data = module.weight.data[:, :, None], module.bias.data  # type: ignore
        elif isinstance(module, nn.BatchNorm2d):
            other = nn.BatchNorm3d(module.num_features)
            other.load_state_dict(module.state_dict())
        elif isinstance(module, (nn.MaxPool2d, nn.AdaptiveAvgPool2d)):
            other = nn.MaxPool3d((1, 2, 2)) if isinstance(module, nn.MaxPool2d) else nn.AdaptiveAvgPool3d(1)
        else:
            continue
        new.set_submodule(name, other)
    return new.double().eval()


def options_of(name: str) -> dict[str, Any]:
    return {key: value for key, value in FAST.items() if key in METHODS[name].options}


@pytest.mark.sample
@pytest.mark.parametrize("name", METHODS)
def test_a_video_of_one_frame_is_an_image(name: str) -> None:
    method, images = METHODS[name], CLIPS[:, :, 0]
    needs_tokens = method.needs is not None and method.applies(images_network()) is not None
    net = tiny_transformer().double().eval() if needs_tokens else images_network()
    if needs_tokens:
        images = torch.randn(2, 3, 20, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = options_of(name)
    if not method.videos:
        with pytest.raises(BadImages, match=f"{name} explains images.*not videos and volumes"):
            method(inflate(net), images[:, :, None], 1, **options)
        return
    found = method(inflate(net), images[:, :, None], 1, **options)
    expected = method(net, images, 1, **options)
    if method.returns == "channels":
        torch.testing.assert_close(found, expected)
        return
    assert found.shape == (*expected.shape[:-2], 1, *expected.shape[-2:])
    if name != "rise":  # draws one more number for each mask
        torch.testing.assert_close(found[..., 0, :, :], expected)


def volumes_network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv3d(3, 5, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2, ceil_mode=True), nn.Conv3d(5, 6, (2, 3, 3)),
        nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 4),
    ).double().eval()  # fmt: skip


NET = volumes_network().requires_grad_(False)
TALL = nn.Sequential(nn.Unflatten(2, (5, 10)), NET)
"""The same network for images with one frame below the other."""
WITH_VIDEOS = [name for name, method in METHODS.items() if method.videos and method.needs is None]


def test_a_batch_of_videos_equals_single_videos() -> None:
    sizes = {"pixels": CLIPS.shape[1:], "heat": CLIPS.shape[2:], "grid": (3, 5, 7), "channels": (5,)}
    for name in WITH_VIDEOS:
        method, options = METHODS[name], options_of(name)
        options |= {"window": (2, 4, 5)} if name == "occlusion" else {}
        options |= {"masks": (2, 2, 2)} if "masks" in options else {}
        found = method(NET, CLIPS, 1, **options)
        if method.returns != "features" and name != "cam":  # CAM needs the last convolution
            assert found.shape == (2, *sizes[method.returns]), f"{name}: the grid is that of the pooling"
        assert found.dtype == torch.float64 and bool(found.isfinite().all()), name
        single = torch.cat([method(NET, clip[None], 1, **options) for clip in CLIPS])
        assert rel(found, single) < 1e-6 or not bool(single.any()), name


def test_peaks_and_enlarged_maps_have_frames() -> None:
    fine = explainers.explain("saliency", NET, CLIPS, 2)
    peaks = [tuple(map(int, torch.unravel_index(heat.argmax(), heat.shape))) for heat in fine.map]
    assert [each["peak"] for each in fine.statistics] == peaks and any(frame > 0 for frame, _, _ in peaks)
    found = explainers.explain("grad_cam", NET, CLIPS, 2, layer="3")
    torch.testing.assert_close(found.upsample((4, 3, 5))[:, 1], 0.75 * found.map[:, 0] + 0.25 * found.map[:, 1])


def test_attributions_of_videos_are_complete() -> None:
    options: dict[str, dict[str, Any]] = {
        "integrated_gradients": {},
        "deep_lift": {},
        "gradient_shap": {"samples": 100, "sigma": 0.0, "baseline": 0.0},
        "guided_integrated_gradients": {"steps": 200},
    }
    change = (NET(CLIPS) - NET(torch.zeros_like(CLIPS)))[:, 3]
    for name, given in options.items():
        found = METHODS[name](NET, CLIPS, 3, **given)
        torch.testing.assert_close(found.sum((1, 2, 3, 4)), change, rtol=1e-2, atol=2e-3, msg=name)
    found = explainers.lrp(NET, CLIPS, 3, rule="z_plus", zero_bias=True, epsilon=1e-12)
    torch.testing.assert_close(found.sum((1, 2, 3, 4)), NET(CLIPS)[:, 3], rtol=1e-5, atol=1e-6)


def test_units_and_full_gradients_of_videos() -> None:
    a = NET[0](CLIPS)
    cells = {(4, 1, 3): a[:, 2, 4, 1, 3], "max": a[:, 2].flatten(1).amax(1), None: a[:, 2].mean((1, 2, 3))}
    for at, value in cells.items():
        found = explainers.explain("saliency", NET, CLIPS, explainers.unit("0", 2, at))
        torch.testing.assert_close(found.statistics[1]["target_score"], float(value[1]))
    with pytest.raises(BadTarget, match="frames 0 to 4, rows 0 to 9"):
        explainers.saliency(NET, CLIPS, explainers.unit("0", 2, (1, 3)))
    parts = explainers.full_gradients(NET, CLIPS, 1)
    torch.testing.assert_close(parts.total(), NET(CLIPS)[:, 1])
    whole = explainers.full_grad(NET, CLIPS, 1, magnitude=False)
    torch.testing.assert_close(whole.flatten(1).sum(1), parts.scores - parts.elsewhere)


def test_occlusion_by_hand_with_windows_in_time() -> None:
    found = explainers.occlusion(NET, CLIPS, 1, window=(2, 4, 5), stride=(1, 3, 4))
    torch.testing.assert_close(found, occlusion_by_hand(NET, CLIPS, [1, 1], (2, 4, 5), (1, 3, 4)))
    with pytest.raises(BadOption, match=r"three: \(frames, height, width\)"):
        explainers.occlusion(NET, CLIPS, 1, window=(4, 5))


def test_feature_ablation_of_labels_in_time() -> None:
    """Identity: as labels of an image with one frame below the other."""
    labels = torch.zeros(5, 10, 14, dtype=torch.long)
    labels[3:] = 1
    expected = explainers.feature_ablation(TALL, CLIPS.flatten(2, 3), 2, masks=labels.flatten(0, 1)).view(2, 5, 10, 14)
    for masks in (labels, torch.stack([labels < 1, labels > 0])):
        torch.testing.assert_close(explainers.feature_ablation(NET, CLIPS, 2, masks=masks), expected)
    with pytest.raises(BadOption, match=r"Superpixels.*masks='grid'"):
        explainers.feature_ablation(NET, CLIPS, 2)


def test_rise_finds_the_part_of_a_video_that_decides() -> None:
    clips = torch.ones(1, 1, 6, 24, 24)
    heat = explainers.rise(nn.AdaptiveAvgPool3d((3, 2, 2)), clips, lambda x: x[:, 0, 2, 0, 1], samples=512, cells=4)[0]
    inside = torch.zeros(6, 24, 24, dtype=torch.bool)
    inside[4:, :12, 12:] = True
    assert heat.shape == (6, 24, 24) and inside.flatten()[heat.flatten().topk(150).indices].double().mean() > 0.9


TOKENS = ["attention_rollout", "transformer_attribution", "le_grad", "grad_eclip", "attention_heads"]


@pytest.mark.parametrize("name", [*TOKENS, "grad_cam", "attn_lrp", "token_pca"])
def test_tubelet_tokens_equal_the_tokens_of_the_frames_in_one_image(name: str) -> None:
    """Patches of a single frame, in the order of the frames, are those of an image with one frame below the other."""
    net = tiny_transformer().double().eval()
    clips = torch.randn(2, 3, 3, 8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = options_of(name) | ({"layer": "norms.1"} if METHODS[name].takes_layer and name not in TOKENS else {})
    found = METHODS[name](inflate(net), clips, 1, **options)
    expected = METHODS[name](net, clips.flatten(2, 3), 1, **options)
    rows = 2 if METHODS[name].returns in ("grid", "features") else 8
    assert found.shape[-3:-1] == (3, rows)
    torch.testing.assert_close(found, expected.reshape(found.shape))


def test_deletion_and_insertion_of_pixels_of_frames() -> None:
    """Identity: as pixels of an image with one frame below the other."""
    maps = torch.randn(2, 5, 10, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    settings: dict[str, Any] = {"target": 2, "steps": 4, "baseline": "zeros"}
    found = explainers.evaluate(NET, CLIPS, maps, **settings)
    expected = explainers.evaluate(TALL, CLIPS.flatten(2, 3), maps.flatten(1, 2), **settings)
    torch.testing.assert_close(found.curves, expected.curves)
    assert sorted(found.controls["deletion"]) == ["center", "edge", "random"]
    with pytest.raises(BadOption, match=r"road is not defined for videos.*deletion"):
        explainers.evaluate(NET, CLIPS, maps, metrics="road")
    with pytest.raises(BadOption, match=r"Give one map per video: \[2, t, h, w\]"):
        explainers.evaluate(NET, CLIPS, maps[:1])


def test_overlays_of_frames_have_common_limits(tmp_path: Any) -> None:
    explanation = explainers.explain("grad_cam", NET, CLIPS, 2, layer="0", relu=False)
    explanation.save(str(tmp_path / "clip.npz"))
    clips = (torch.rand(2, 5, 3, 40, 56) * 255).to(torch.uint8)
    drawn = explainers.Explanation.load(str(tmp_path / "clip.npz")).overlay_frames(clips)
    assert [len(frames) for frames in drawn] == [5, 5] and drawn[0][0].size == (56, 40)
    map, frames = torch.zeros(2, 4, 4), [clips[0, 0], clips[0, 0]]
    map[0, 1, 1], map[1, 2, 2] = 1.0, 0.25
    _, second = explainers.overlay_frames(frames, map)
    assert second.tobytes() == explainers.overlay(frames[1], map[1], limits=(0, 1), colors="magma").tobytes()
    for refused in (lambda: explainers.overlay(frames[0], map), lambda: explanation.overlay(frames)):
        with pytest.raises(ValueError, match="overlay_frames"):
            refused()


def test_other_axes_and_channels_are_refused_with_the_remedy() -> None:
    class TimeFirst(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return NET(x.transpose(1, 2))

    with pytest.raises(BadImages, match=r"forward=lambda images: model\(images\.transpose\(1, 2\)\)"):
        explainers.grad_cam(TimeFirst(), CLIPS, 1)
    net = TimeFirst().eval()
    net.inner = NET
    swapped = explainers.saliency(net, CLIPS, 1, forward=lambda images: net(images.transpose(1, 2)))
    torch.testing.assert_close(swapped, explainers.saliency(NET, CLIPS, 1))
    with pytest.raises(BadImages, match=r"the model takes images \[N, C, H, W\].*images\.flatten\(0, 1\)"):
        explainers.grad_cam(images_network(), CLIPS.transpose(1, 2), 1)
    broken = CLIPS.clone()
    broken[:, 2, 3, 4, 5] = float("nan")
    with pytest.raises(BadImages, match="nan at image 0, channel 2, frame 3, row 4, column 5"):
        explainers.saliency(NET, broken, 1)
