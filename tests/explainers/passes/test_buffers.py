"""Calls leave buffers as they were, also if the forward pass writes to them, and every pass finds the same values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import explain

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 3


class Observed(nn.Module):
    """A network that divides by a running mean of its input, which it updates in every pass."""

    def __init__(self, update: str = "in place") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.update = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4), update
        self.register_buffer("size", torch.ones(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long), persistent=False)
        self.register_buffer("seen", None)

    def forward(self, x: Tensor) -> Tensor:
        new = 0.9 * self.size + 0.1 * x.detach().abs().mean()
        if self.update == "in place":
            self.size.copy_(new)
            self.count += 1
        elif self.update == "replaced":
            self.size, self.seen = new, x.detach().clone()
        elif self.update == "resized":
            self.size.resize_(1).fill_(float(new))
        return self.head((self.conv(x) / self.size).relu().mean((2, 3)))


def quantized(kind: str) -> nn.Module:
    quantization = pytest.importorskip("torch.ao.quantization")
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    net: Any = nn.Sequential(quantization.QuantStub(), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    calibration = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    if kind == "qat":
        net.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        net = quantization.prepare_qat(net.train())
    elif kind == "ptq":
        net.eval().qconfig = quantization.get_default_qconfig("fbgemm")
        net = quantization.prepare(net)
    else:
        from torch.ao.quantization.quantize_fx import prepare_fx

        net = prepare_fx(net.eval(), quantization.get_default_qconfig_mapping("fbgemm"), (calibration,))
    net(calibration)
    return net.eval()


NETS: dict[str, Callable[[], nn.Module]] = {
    "in place": lambda: Observed().eval(),
    "replaced": lambda: Observed("replaced").eval(),
    "resized": lambda: Observed("resized").eval(),
    "inside": lambda: nn.Sequential(nn.Identity(), Observed()).eval(),
    "quantization-aware training": lambda: quantized("qat"),
    "post-training quantization": lambda: quantized("ptq"),
    "post-training quantization by FX": lambda: quantized("fx"),
}


def first_convolution(net: nn.Module) -> str:
    return next(name for name, module in net.named_modules() if isinstance(module, nn.Conv2d))


CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "explain": lambda net: explain("saliency", net, IMAGES, 1),
    "grad_cam": lambda net: explainers.grad_cam(net, IMAGES, 1, layer=first_convolution(net)),
    "occlusion": lambda net: explainers.occlusion(net, IMAGES, 1, window=8),
    "score_cam": lambda net: explainers.score_cam(net, IMAGES, 1, layer=first_convolution(net)),
    "list_layers": lambda net: explainers.list_layers(net, IMAGES),
    "default_layer": lambda net: explainers.default_layer(net, IMAGES),
    "describe": lambda net: explainers.describe(net, IMAGES),
    "evaluate": lambda net: explainers.evaluate(net, IMAGES, torch.rand(2, 16, 16), steps=2, controls=False),
    "compare_models": lambda net: explainers.compare_models(net, net, IMAGES),
    "intervene": lambda net: explainers.intervene(net, IMAGES, first_convolution(net)),
    "smallest_region": lambda net: explainers.smallest_region(net, IMAGES, torch.rand(2, 16, 16)),
    "smooth": lambda net: explainers.smooth("saliency", sigma=0.1, samples=2)(net, IMAGES, 1),
    "patch_effects": lambda net: explainers.patch_effects(net, IMAGES, IMAGES.flip(0), 1, layer=first_convolution(net)),
    "forward=": lambda net: explain("saliency", net, IMAGES, 1, forward=lambda images: net(images)),
    "a failing forward=": lambda net: fails(net),
    "randomization_test": lambda net: explainers.randomization_test(net, IMAGES, "saliency", seeds=1),
}


def fails(net: nn.Module) -> None:
    def broken(images: Tensor) -> Tensor:
        net(images)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        explainers.saliency(net, IMAGES, 1, forward=broken)


def state(net: nn.Module) -> dict[str, tuple[int, Tensor | None]]:
    tables = [(name, module._buffers) for name, module in net.named_modules()]
    return {
        f"{name}.{own}": (id(tensor), None if tensor is None else tensor.clone())
        for name, table in tables
        for own, tensor in table.items()
    }


def same(before: dict[str, tuple[int, Tensor | None]], after: dict[str, tuple[int, Tensor | None]]) -> bool:
    return before.keys() == after.keys() and all(
        before[name][0] == after[name][0]
        and (before[name][1] is after[name][1] is None or torch.equal(before[name][1], after[name][1]))  # type: ignore[arg-type]
        for name in before
    )


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_leaves_all_buffers_as_they_were(
    make: Callable[[], nn.Module], call: Callable[[nn.Module], Any]
) -> None:
    net = make()
    before, attributes = state(net), {name: set(vars(module)) for name, module in net.named_modules()}
    for _ in range(2):
        call(net)
        assert same(before, state(net))
    assert attributes == {name: set(vars(module)) for name, module in net.named_modules()}


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_every_pass_finds_the_same_buffers_and_the_result_says_so(make: Callable[[], nn.Module]) -> None:
    net = make()
    found, again = (explain("saliency", net, IMAGES, 1) for _ in range(2))
    torch.testing.assert_close(found.raw, again.raw, rtol=0, atol=0)
    codes = {finding.code for row in found.findings for finding in row}
    assert "buffers_written" in codes and "stochastic" not in codes
    alone = [explain("saliency", net, image, 1).raw for image in IMAGES.split(1)]
    torch.testing.assert_close(found.raw, torch.cat(alone), rtol=1e-4, atol=1e-7)


def test_the_map_is_that_of_a_pass_with_the_buffers_of_the_model() -> None:
    net = Observed().eval()
    for image in IMAGES.split(1):
        frozen = Observed("none").eval()
        frozen.load_state_dict(net.state_dict())
        frozen.size.copy_(0.9 * net.size + 0.1 * image.abs().mean())
        expected = explainers.saliency(frozen, image, 1)
        torch.testing.assert_close(explainers.saliency(net, image, 1), expected, rtol=1e-4, atol=1e-7)


def test_a_network_that_does_not_write_has_no_finding_and_one_that_starts_to_is_noticed() -> None:
    net = Observed("none").eval()
    for _ in range(3):
        assert not {finding.code for row in explain("saliency", net, IMAGES, 1).findings for finding in row}
    net.update = "in place"
    before = state(net)
    found = explain("saliency", net, IMAGES, 1)
    assert same(before, state(net))
    again = explain("saliency", net, IMAGES, 1)
    assert same(before, state(net))
    assert "buffers_written" in {finding.code for each in (found, again) for finding in each.findings[0]}


def test_statistics_that_training_in_another_thread_updates_are_not_restored() -> None:
    """The call runs a copy, so it does not undo what the other thread writes."""
    net = Observed().eval()
    reached, go_on = threading.Event(), threading.Event()

    def watch(step: Any) -> None:
        reached.set()
        go_on.wait(10)

    call = threading.Thread(target=lambda: explainers.occlusion(net, IMAGES, 1, window=8, batch_size=1, progress=watch))
    call.start()
    assert reached.wait(30)
    with torch.no_grad():
        net.size.fill_(5.0)
    go_on.set()
    call.join()
    assert float(net.size) == 5.0


def test_a_model_in_training_mode_is_not_changed_either() -> None:
    net = nn.Sequential(Observed(), nn.BatchNorm1d(4)).train()
    before = state(net)
    explain("saliency", net, IMAGES, 1)
    assert same(before, state(net)) and net.training


@pytest.mark.parametrize("update", ["in place", "replaced"])
def test_comparing_the_buffers_is_no_decision_of_the_network(update: str) -> None:
    """Their new values depend on the image; only the guard reads them."""
    for each in explain("grad_cam", Observed(update).eval(), IMAGES, 1, layer="conv").findings:
        assert {finding.code for finding in each} == {"buffers_written", "rows_depend"}


@pytest.mark.parametrize("method", ["lrp", "deep_lift"])
def test_a_network_that_counts_its_passes_is_refused_for_that_reason(method: str) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.passes = nn.Linear(3, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            return self.head(x.mean((2, 3))) * self.passes

    with pytest.raises(explainers.UnsupportedOperation, match="from pass to pass, even with fixed seeds"):
        explain(method, Counting().eval(), IMAGES, 1)
