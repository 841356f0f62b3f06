"""Checks of attributions: integrals by autograd, conservation by sums, attention and ablation by manual computation."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

import benchmarks.zoo.positions
import benchmarks.zoo.steady  # noqa: F401
import explainers
from benchmarks.zoo.checks import CHECKS, Noted, check, expect, same
from benchmarks.zoo.oracles import first_tensor, on_calls, outputs, put_back, split
from benchmarks.zoo.subject import Subject

__all__ = ["CHECKS"]
NODES = 3
"""Number of points of the integral."""


@check
def integrated_gradients(subject: Subject) -> str:
    """Compare integrated gradients with autograd at numpy's three Gauss-Legendre points, and with differences."""
    model, images, tolerance = subject.in_float64()
    x = images[:1]
    actual = explainers.integrated_gradients(model, x, subject.target, steps=NODES, **subject.options_for(model))
    score = subject.score(subject.plain(model))
    points, weights = (torch.tensor(each).to(x) for each in numpy.polynomial.legendre.leggauss(NODES))
    points, weights = (points + 1) / 2, weights / 2
    leaf = (points[:, None, None, None] * x).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(score(leaf).sum(), leaf)
    _expect_slope(score, leaf.detach()[:1], x, float((slope[0] * x[0]).sum()))
    right = x * torch.einsum("n,nchw->chw", weights, slope)
    same(actual, right, tolerance, f"{NODES} nodes")
    return f"sum {float(right.sum()):.3g}"


def _expect_slope(score: Any, at: Tensor, direction: Tensor, slope: float) -> None:
    """Compare the oracle's gradient along `direction` with central differences, if those agree with each other."""
    with torch.no_grad():
        found = [float(score(at + h * direction) - score(at - h * direction)) / (2 * h) for h in (1e-5, 3e-5)]
    if abs(found[0] - found[1]) < 1e-4 * abs(found[0]):
        expect(
            abs(found[0] - slope) < 1e-3 * abs(found[0]) + 1e-8,
            f"oracle: gradient {slope:.4g}, by differences {found[0]:.4g}",
        )


@check
def deep_lift(subject: Subject) -> str:
    """Check that DeepLIFT's values sum to the score minus that of a black image."""
    model, images, tolerance = subject.in_float64()
    score = subject.score(model)
    with torch.no_grad():
        changes = score(images) - score(torch.zeros_like(images))
    explanation = explainers.explain(
        "deep_lift", model, images, subject.target, compare=False, **subject.options_for(model)
    )
    values = explanation.raw
    expect(bool(values.isfinite().all()), "not finite")
    sums = values.flatten(1).sum(1)
    gap = float(((sums - changes) / changes).abs().max())
    if gap > max(1e-4, tolerance):
        findings = [finding.sentence for row in explanation.findings for finding in row if finding.code == "incomplete"]
        if findings:
            raise Noted(findings[0])
    expect(gap <= max(1e-4, tolerance), f"sums {_few(sums)}, changes of the score {_few(changes)}")
    return f"{_few(sums)}"


def _few(values: Tensor) -> str:
    return ", ".join(f"{float(value):.4g}" for value in values)


@check
def lrp(subject: Subject) -> str:
    """Check that the epsilon rule conserves the score of a copy without constants, and that the default is finite."""
    model, images, _ = subject.in_float64()
    plain = without_constants(copy.deepcopy(model))
    score, x, options = subject.score(plain), images[:1], subject.options_for(plain)
    with torch.no_grad():
        whole, nothing = float(score(x)), float(score(torch.zeros_like(x)))
    usual = explainers.lrp(model, images[:1].to(images), subject.target, **subject.options_for(model))
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
    """Records the weights of every attention that runs, computed from its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "multi_head_attention_forward":
            output, weights = func(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})
            self.seen.append(weights)
            return output, None
        if name == "scaled_dot_product_attention":
            query, key = args[0], args[1]
            mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
            scale = kwargs.get("scale") or query.shape[-1] ** -0.5
            logits = (query.double() @ key.double().transpose(-1, -2)) * scale
            if mask is not None:
                logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
            self.seen.append(torch.exp(logits - logits.logsumexp(-1, keepdim=True)))
        output = func(*args, **kwargs)
        if name in ("softmax", "_softmax"):
            axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            if output.ndim >= 3 and axis in (-1, output.ndim - 1) and output.shape[-1] > 1:
                self.seen.append(output.detach())
        return output


@check
def attention_rollout(subject: Subject) -> str:
    """Compare with a rollout of all attentions that ran; a rollout of fewer is wrong."""
    x = subject.images[:1]
    with torch.no_grad(), _Attentions() as watch:
        subject.score()(x)
    shapes = sorted({tuple(weights.shape[-2:]) for weights in watch.seen})
    actual = explainers.attention_rollout(subject.model, x, subject.target, **subject.options)
    ran = f"{len(watch.seen)} attentions of {', '.join(f'{a} x {b}' for a, b in shapes)}"
    expect(len(shapes) == 1 and shapes[0][0] == shapes[0][1], f"a rollout, although the network ran {ran}")
    rolled = torch.eye(shapes[0][0], dtype=torch.float64)
    for weights in watch.seen:
        expect(weights.numel() % (shapes[0][0] ** 2) == 0, f"weights of {tuple(weights.shape)}")
        mixed = weights.double().reshape(-1, *shapes[0]).mean(0) + torch.eye(shapes[0][0], dtype=torch.float64)
        rolled = mixed / mixed.sum(1, keepdim=True) @ rolled
    cells = actual.shape[-2] * actual.shape[-1]
    extra = shapes[0][0] - cells
    expect(extra >= 0, f"{cells} cells of {shapes[0][0]} tokens")
    rows = {"class token": rolled[:1], "all": rolled, "patches": rolled[extra:], "two tokens": rolled[:2]}
    rows["class token and patches"] = torch.cat([rolled[:1], rolled[extra:]])
    gaps = {
        name: float((row.mean(0)[extra:].view(actual.shape[1:]) - actual[0].double()).abs().max())
        for name, row in rows.items()
    }
    best = min(gaps, key=lambda name: gaps[name])
    expect(gaps[best] < 1e-4 * float(actual.max()), f"{ran}: off by {gaps[best] / float(actual.max()):.2g}")
    return f"{len(watch.seen)} attentions, read at {best}"


@check
def channel_effects(subject: Subject) -> str:
    """Compare three channels with a forward hook that sets them to zero."""
    model, score, x, name = subject.model, subject.score(), subject.images[:1], subject.default
    effects = subject.effects
    path, number = split(name)
    layout = subject.layout(name)
    expect(layout is not None, f"{name}: no layout from evidence")
    axis = ({1, 2, 3} - set(layout.axes)).pop() if len(layout.axes) == 2 else 3 - layout.axes[0]
    chosen = sorted({int(effects[0].argmax()), int(effects[0].argmin()), effects.shape[1] // 2})

    def zeroed(channel: int) -> float:
        def see(_: str, k: int, output: Any) -> Any:
            if k != number:
                return None
            tensor = first_tensor(output).clone()
            tensor.select(axis, channel).zero_()
            return put_back(output, tensor)

        with torch.no_grad(), on_calls(model, see, {path}):
            return float(score(x))

    with torch.no_grad():
        whole = float(score(x))
    right = torch.tensor([whole - zeroed(channel) for channel in chosen])
    size = max(float(effects.abs().max()), 1e-3 * abs(whole))
    gap = float((effects[0, chosen] - right).abs().max()) / size
    expect(gap < 2 * subject.network.rounding, f"channels {chosen}: {_few(effects[0, chosen])}, expected {_few(right)}")
    return f"{effects.shape[1]} channels"


@check
def ablation_cam(subject: Subject) -> str:
    """Compare with activations weighted by the effects of their channels, some of which `channel_effects` checks."""
    x, name = subject.images[:1], subject.default
    layout = subject.layout(name)
    expect(layout is not None, f"{name}: no layout from evidence")
    actual = explainers.ablation_cam(subject.model, x, subject.target, relu=False, **subject.options)
    kept = outputs(subject.model, subject.score(), x, [name])[name]
    right = torch.einsum("nk,nkhw->nhw", subject.effects.to(kept), layout.maps(kept))
    same(actual, right, subject.network.rounding, "weighted activations")
    expect(float(right.abs().max()) > 0, "the map is zero")
    return f"{tuple(right.shape[1:])}"


class _Recorder(nn.Module):
    """A network that reports the input of each forward pass."""

    def __init__(self, network: nn.Module, see: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.network, self.see = network, see

    def forward(self, images: Tensor) -> Any:
        self.see(images)
        return self.network(images)


@check
def rise(subject: Subject) -> str:
    """Compare batches of 1 and 4, and compute the map from the masked images that the network received."""
    x, score = subject.images[:1], subject.score()
    log: list[Tensor] = []

    def see(images: Tensor) -> None:
        log.append(images.detach().clone())

    target, model, options = subject.target, subject.model, subject.options
    if options:
        forward = options["forward"]
        options = {"forward": lambda images: (see(images), forward(images))[1]}
    else:
        model = _Recorder(model, see).eval()
    maps = [explainers.rise(model, x, target, samples=12, batch_size=1, **options)]
    log.clear()  # the first call also checks the network with other images
    maps.append(explainers.rise(model, x, target, samples=12, batch_size=4, **options))
    seen = torch.cat(log)
    same(maps[1], maps[0], 2 * subject.network.rounding, "batches of 1 and 4")
    masks = (seen * x).sum(1) / (x * x).sum(1)
    masked = seen[(masks < 0.999).flatten(1).any(1)]
    expect(len(masked) == 12, f"{len(masked)} masked images were seen, not 12")
    masks = (masked * x).sum(1) / (x * x).sum(1)
    expect(bool(((masked - masks[:, None] * x).abs() < 1e-4 * x.abs().max()).all()), "images that are not masked")
    with torch.no_grad():
        scores = torch.cat([score(row[None]) for row in masked])
    right = torch.einsum("s,shw->hw", scores, masks) / masks.sum(0).clamp(min=1e-12) - scores.mean()
    right = torch.where(masks.sum(0) > 1e-9, right, 0)
    same(maps[0][0], right, 5 * subject.network.rounding, "computed from the masks")
    return f"from {float(maps[0].min()):.3g} to {float(maps[0].max()):.3g}"
