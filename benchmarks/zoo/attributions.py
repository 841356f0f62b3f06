"""Checks of attributions: integrals by autograd, conservation by sums, attention and ablation by manual computation."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

import explainers
from benchmarks.zoo.checks import CHECKS, Noted, check, expect, expect_slope, layout_of_default, same
from benchmarks.zoo.oracles import edited, outputs
from benchmarks.zoo.subject import Subject

__all__ = ["CHECKS"]
NODES = 3
"""Number of points of the integral."""


@check("steady")
def steady(subject: Subject) -> str:
    """Gradients are the same in two calls, one image at a time and in training mode; the model does not change."""
    model, images, tolerance = subject.in_float64

    def slope(images: Tensor) -> Tensor:
        return explainers.saliency(model, images, subject.target, **subject.options_for(model))

    state = torch.random.get_rng_state()
    first, again = slope(images), slope(images)
    expect(torch.equal(torch.random.get_rng_state(), state), "the global random generator has moved")
    same(again, first, 0.0, "two calls")
    alone = torch.cat([slope(images[n : n + 1]) for n in range(len(images))])
    same(alone, first, max(tolerance, subject.network.rounding), "one by one")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    model.train()
    try:
        found, words = slope(images), "the same in training mode"
    except explainers.UnsupportedModel as error:
        found, words = first, f"training mode is refused: {error}"
    changed = [module for module in model.modules() if not module.training]
    model.eval()
    expect(not changed, "the mode of a module has changed")
    for name, tensor in model.state_dict().items():
        expect(name not in before or torch.equal(tensor, before[name]), f"{name} has changed")
    same(found, first, 1e-3, "training mode")
    return words


@check("IG")
def integrated_gradients(subject: Subject) -> str:
    """Integrated gradients at three points by autograd, whose gradient central differences confirm."""
    model, images, tolerance = subject.in_float64
    x, score = images[:1], subject.score(subject.plain(model))
    actual = explainers.integrated_gradients(model, x, subject.target, steps=NODES, **subject.options_for(model))
    points, weights = (torch.tensor(each).to(x) for each in numpy.polynomial.legendre.leggauss(NODES))
    leaf = ((points[:, None, None, None] + 1) / 2 * x).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(score(leaf).sum(), leaf)
    at, along = leaf.detach()[:1], float((slope[0] * x[0]).sum())
    expect_slope(lambda step: float(score(at + step * x)), along, tolerance=1e-3, agreement=1e-4)
    right = x * torch.einsum("n,nchw->chw", weights / 2, slope)
    same(actual, right, tolerance, f"{NODES} nodes")
    return f"sum {float(right.sum()):.3g}"


@check("DeepLIFT")
def deep_lift(subject: Subject) -> str:
    """The sum is the score minus that of a black image."""
    model, images, tolerance = subject.in_float64
    score, options = subject.score(model), subject.options_for(model)
    with torch.no_grad():
        changes = score(images) - score(torch.zeros_like(images))
    found = explainers.explain("deep_lift", model, images, subject.target, compare=False, **options)
    expect(bool(found.raw.isfinite().all()), "not finite")
    sums = found.raw.flatten(1).sum(1)
    gap = float(((sums - changes) / changes).abs().max())
    for finding in (each for row in found.findings for each in row):
        if gap > max(1e-4, tolerance) and finding.code == "incomplete":
            raise Noted(finding.sentence)
    expect(gap <= max(1e-4, tolerance), f"sums {_few(sums)}, changes of the score {_few(changes)}")
    return _few(sums)


def _few(values: Tensor) -> str:
    return ", ".join(f"{float(value):.4g}" for value in values)


@check("LRP")
def lrp(subject: Subject) -> str:
    """The epsilon rule conserves the score of a copy without additive constants."""
    model, images, _ = subject.in_float64
    plain = without_constants(copy.deepcopy(model))
    score, x, options = subject.score(plain), images[:1], subject.options_for(plain)
    with torch.no_grad():
        whole, nothing = float(score(x)), float(score(torch.zeros_like(x)))
    usual = explainers.lrp(model, x, subject.target, **subject.options_for(model))
    expect(bool(usual.isfinite().all()) and float(usual.abs().max()) > 0, "default: not finite, or zero everywhere")
    relevance = explainers.lrp(plain, x, subject.target, rule="epsilon", **options)
    expect(bool(relevance.isfinite().all()), "epsilon rule: not finite")
    total = float(relevance.sum())
    if abs(nothing) > 1e-6 * abs(whole):
        return f"sum {total:.4g} of {whole:.4g}, constants {nothing:.4g} remain"
    expect(abs(total - whole) <= 1e-3 * abs(whole), f"sum {total:.4g}, score {whole:.4g} without biases")
    return f"{total:.4g}"


def without_constants(model: nn.Module) -> nn.Module:
    """Set everything that is added independently of the image to zero: biases, means, embeddings, tokens."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, _BatchNorm) and module.running_mean is not None:
                module.running_mean.zero_()
            for name, parameter in module.named_parameters(recurse=False):
                # Tables of relative position biases are inside a softmax, which LRP treats as a constant.
                table = "relative" in name or "table" in name
                bias = parameter.ndim == 1 and re.search(r"bias|beta", name)
                added = name != "weight" and re.search(r"pos|token|embedding|dist", name)
                if isinstance(module, nn.Embedding) or ((bias or added) and not table):
                    parameter.zero_()
    return model


class _Attentions(TorchFunctionMode):
    """Records the weights of every attention that runs, computed from its inputs, and its output."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def weights(self, score: Tensor) -> list[Tensor]:
        """Return the weights of the attentions on which the score depends."""
        found = [(weights.detach(), output) for weights, output in self.seen if output.requires_grad]
        used = torch.autograd.grad(score, [output for _, output in found], allow_unused=True) if found else ()
        return [weights for (weights, _), gradient in zip(found, used, strict=True) if gradient is not None]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "multi_head_attention_forward":
            output, weights = func(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})
            self.seen.append((weights, output))
            return output, None
        output = func(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
            logits = args[0].double() @ args[1].double().transpose(-1, -2)
            logits = logits * (kwargs.get("scale") or args[0].shape[-1] ** -0.5)
            if mask is not None:
                logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
            self.seen.append((logits.softmax(-1), output))
        if name in ("softmax", "_softmax"):
            axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            if output.ndim >= 3 and axis in (-1, output.ndim - 1) and output.shape[-1] > 1:
                self.seen.append((output, output))
        return output


@check("rollout")
def attention_rollout(subject: Subject) -> str:
    """Computed from all attentions on which the score depends."""
    x = subject.images[:1]
    with _Attentions() as watch:
        score = subject.score()(x.clone().requires_grad_()).sum()
    actual = explainers.attention_rollout(subject.model, x, subject.target, **subject.options)
    seen = watch.weights(score)
    shapes = sorted({tuple(weights.shape[-2:]) for weights in seen})
    ran = f"{len(seen)} attentions of {', '.join(f'{a} x {b}' for a, b in shapes)}"
    expect(len(shapes) == 1 and shapes[0][0] == shapes[0][1], f"a rollout, although the score depends on {ran}")
    same_token = torch.eye(shapes[0][0], dtype=torch.float64)
    rolled = same_token
    for weights in seen:
        expect(weights.numel() % (shapes[0][0] ** 2) == 0, f"weights of {tuple(weights.shape)}")
        mixed = weights.double().reshape(-1, *shapes[0]).mean(0) + same_token
        rolled = mixed / mixed.sum(1, keepdim=True) @ rolled
    extra = shapes[0][0] - actual[0].numel()
    expect(extra >= 0, f"{actual[0].numel()} cells of {shapes[0][0]} tokens")
    rows = {"class token": rolled[:1], "all": rolled, "patches": rolled[extra:], "two tokens": rolled[:2]}
    rows["class token and patches"] = torch.cat([rolled[:1], rolled[extra:]])
    right = {name: row.mean(0)[extra:].view(actual.shape[1:]) for name, row in rows.items()}
    gaps = {name: float((each - actual[0].double()).abs().max()) for name, each in right.items()}
    best = min(gaps, key=lambda name: gaps[name])
    expect(gaps[best] < 1e-4 * float(actual.max()), f"{ran}: off by {gaps[best] / float(actual.max()):.2g}")
    return f"{len(seen)} attentions, read at {best}"


@check("effects")
def channel_effects(subject: Subject) -> str:
    """Three channels set to zero by a hook."""
    score, x, name, effects = subject.score(), subject.images[:1], subject.default, subject.effects
    layout = layout_of_default(subject)
    chosen = sorted({int(effects[0].argmax()), int(effects[0].argmin()), effects.shape[1] // 2})

    def zeroed(channel: int) -> float:
        def fill(tensor: Tensor) -> Tensor:
            return tensor.index_fill(layout.channels, torch.tensor([channel]), 0.0)

        with edited(subject.model, name, fill):
            return float(score(x))

    with torch.no_grad():
        whole = float(score(x))
        right = torch.tensor([whole - zeroed(channel) for channel in chosen])
    size = max(float(effects.abs().max()), 1e-3 * abs(whole))
    gap = float((effects[0, chosen] - right).abs().max()) / size
    expect(gap < 2 * subject.network.rounding, f"channels {chosen}: {_few(effects[0, chosen])}, expected {_few(right)}")
    return f"{effects.shape[1]} channels"


@check("Ablation-CAM")
def ablation_cam(subject: Subject) -> str:
    """The activations weighted by the effects."""
    x, name, layout = subject.images[:1], subject.default, layout_of_default(subject)
    actual = explainers.ablation_cam(subject.model, x, subject.target, relu=False, **subject.options)
    kept = outputs(subject.model, subject.score(), x, [name])[name]
    right = torch.einsum("nk,nkhw->nhw", subject.effects.to(kept), layout.maps(kept))
    same(actual, right, subject.network.rounding, "weighted activations")
    expect(float(right.abs().max()) > 0, "the map is zero")
    return f"{tuple(right.shape[1:])}"


class _Recorder(nn.Module):
    """A network that records the input of each forward pass."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call, self.log = call, list[Tensor]()

    def forward(self, images: Tensor) -> Any:
        self.log.append(images.detach().clone())
        return self.call(images)


@check("RISE")
def rise(subject: Subject) -> str:
    """Computed from the masked images that the network received; batches of 1 and 4."""
    x, score = subject.images[:1], subject.score()
    recorder = _Recorder(subject.network.call(subject.model)).eval()
    model, options = (subject.model, {"forward": lambda x: recorder(x)}) if subject.options else (recorder, {})
    maps = [explainers.rise(model, x, subject.target, samples=12, batch_size=1, **options)]
    recorder.log.clear()  # the first call also checks the network with other images
    maps.append(explainers.rise(model, x, subject.target, samples=12, batch_size=4, **options))
    same(maps[1], maps[0], 2 * subject.network.rounding, "batches of 1 and 4")
    seen = torch.cat(recorder.log)
    masks = (seen * x).sum(1) / (x * x).sum(1)
    chosen = (masks < 0.999).flatten(1).any(1)
    masked, masks = seen[chosen], masks[chosen]
    expect(len(masked) == 12, f"{len(masked)} masked images were seen, not 12")
    expect(bool(((masked - masks[:, None] * x).abs() < 1e-4 * x.abs().max()).all()), "images that are not masked")
    with torch.no_grad():
        scores = torch.cat([score(row[None]) for row in masked])
    right = torch.einsum("s,shw->hw", scores, masks) / masks.sum(0).clamp(min=1e-12) - scores.mean()
    right = torch.where(masks.sum(0) > 1e-9, right, 0)
    same(maps[0][0], right, 5 * subject.network.rounding, "computed from the masks")
    return f"from {float(maps[0].min()):.3g} to {float(maps[0].max()):.3g}"
