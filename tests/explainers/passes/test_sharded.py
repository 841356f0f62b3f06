"""Models that FSDP shards over processes: the results are those of the same network without sharding."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

import explainers
from explainers import METHODS, ExplainerError, UnsupportedModel
from explainers.network import eval_view
from tests.support.nets import random_images, residual
from tests.support.processes import in_processes
from tests.support.sharding import KINDS, each_kind, quick_kind, shard

pytestmark = [
    pytest.mark.skipif(
        not (distributed.is_available() and distributed.is_gloo_available()), reason="needs torch.distributed with gloo"
    ),
    pytest.mark.filterwarnings("ignore"),
]
UNITS = ("layer1", "layer2")
QUICK = ("grad_cam", "score_cam", "feature_maps", "saliency", "integrated_gradients", "guided_backprop", "lrp", "rise")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def images_of(rank: int) -> Tensor:
    """Different numbers of different images."""
    return random_images(2 - rank, seed=rank)


def result(call: Any, *args: Any, **options: Any) -> Any:
    try:
        return call(*args, **options)
    except ExplainerError as error:
        return str(error).replace("FSDP", "")  # `fully_shard` renames the class, which a message may name


def same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.shape == two.shape and bool(torch.allclose(one, two, rtol=1e-9, atol=1e-12))
    return bool(one == two)


def maps_that_differ(rank: int, kind: str, names: list[str]) -> list[str]:
    """Return the methods whose second map of the sharded network is not that of the network."""
    images, plain, net = images_of(rank), residual(), shard(residual(), kind, UNITS).train()
    differ = []
    for name in names:
        expected, found = (result(METHODS[name], model, images) for model in (plain, net))
        if not same(expected, found) or not same(expected, result(METHODS[name], net, images)):
            differ.append(name)
    assert all(module.training for module in net.modules())
    assert all(parameter.grad is None for parameter in net.parameters())
    return differ


def calls_that_differ(rank: int, kind: str) -> list[str]:
    """Return the functions with another result for the sharded network, by name."""
    images, plain, net = images_of(rank), residual(), shard(residual(), kind, UNITS)
    maps = explainers.saliency(plain, images, 1).sum(1)

    def explain(model: nn.Module, layer: Any = None) -> Any:
        found = explainers.explain("grad_cam", model, images, layer=layer)
        return found.map.tolist(), found.layer, found.score, found.statistics, found.findings

    inside = "layer1.conv1" if kind == "fully_shard" else "layer1._fsdp_wrapped_module.conv1"
    test = {"order": "logit", "seeds": 1}
    calls = {
        "explain": lambda model: explain(model),
        "layer as a module": lambda model: explain(model, model.layer2),
        "layer in a unit": lambda model: explain(model, "layer1.conv1"),
        "layer by the name in the wrapper": lambda model: explain(model, "layer1.conv1" if model is plain else inside),
        "names": lambda model: [layer.name for layer in explainers.list_layers(model, images)],
        "unknown layer": lambda model: result(explainers.grad_cam, model, images, layer="layer1.conv9"),
        "default": lambda model: explainers.default_layer(model, images),
        "field": lambda model: [
            layer.receptive_field((1, 1)) for layer in explainers.list_layers(model, images, spatial=True)
        ],
        "evaluate": lambda model: str(explainers.evaluate(model, images, maps=maps, target=1)),
        "randomize": lambda model: str(explainers.randomization_test(model, images, "saliency", **test)),
    }
    return [name for name, call in calls.items() if call(plain) != call(net)]


def train(net: nn.Module, images: Tensor, explained: bool) -> list[Tensor]:
    """Return the gradients of three steps, with calls before, between and after the passes if `explained`."""
    found = []
    for _ in range(3):
        net.zero_grad()
        maps = [explainers.grad_cam(net, images, 1)] if explained else []
        loss = (net(images) - 1).pow(2).mean()
        if explained:
            maps += [explainers.grad_cam(net, images, 1), explainers.saliency(net, images[:1])]
            assert torch.equal(*maps[:2]), "the weights have not changed"
        loss.backward()
        if explained:
            explainers.grad_cam(net, images, 1)
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.grad is not None:
                    gradient = parameter.grad
                    found.append((gradient.to_local() if hasattr(gradient, "to_local") else gradient).clone())
                    parameter.sub_(0.01 * gradient)
    return found


def training_differs(rank: int, kind: str) -> bool:
    both = [train(shard(residual(), kind, UNITS), images_of(rank), explained) for explained in (False, True)]
    assert len(both[0]) >= 3
    return not all(map(torch.equal, *both))


def differences(rank: int, kind: str) -> tuple[list[str], list[str], bool]:
    """Return the maps and the functions with other results, and whether calls change training."""
    return maps_that_differ(rank, kind, list(QUICK)), calls_that_differ(rank, kind), training_differs(rank, kind)


@quick_kind
def test_results_of_two_processes_with_different_images(tmp_path, kind):
    assert in_processes(differences, tmp_path, kind) == [([], [], False)] * 2


@each_kind
def test_the_full_parameters_are_freed_after_each_call(group, kind, monkeypatch):
    copies, gather = [], eval_view.gathered_copy

    def watch(model: nn.Module) -> nn.Module:
        copy = gather(model)
        copies.extend(weakref.ref(parameter) for parameter in copy.parameters())
        return copy

    monkeypatch.setattr(eval_view, "gathered_copy", watch)
    net, images = shard(residual(), kind, UNITS), images_of(0)
    gc.collect()
    gc.disable()
    try:
        for name in QUICK:
            explainers.explain(name, net, images)
    finally:
        gc.enable()
    assert copies and [copy() for copy in copies if copy() is not None] == []


@each_kind
def test_hooks_in_passes_of_the_user_see_whole_activations(group, kind):
    images, found = images_of(0), []
    for model in (residual(), shard(residual(), kind, UNITS).eval()):
        with explainers.capture(model, ["conv1", "layer2.conv1"], gradients=True) as captured:
            with explainers.input_gradients(model, "layer2") as gradients:
                model(images)[:, 1].sum().backward()
        with explainers.edit_outputs(model, {"layer1": lambda output: 2 * output}):
            edited = model(images).detach()
        found.append(
            [
                captured.outputs["conv1"],
                captured.inputs["layer2.conv1"],
                captured.gradients["layer2.conv1"],
                gradients.grad_input["layer2"],
                edited,
            ]
        )
    assert all(map(same, *found))


def test_weights_have_the_precision_in_which_they_are_stored(group):
    """Also those of the root, which stay in the lower precision after a pass."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

    images, net = images_of(0).float(), network()
    expected = explainers.grad_cam(net, images, 1, layer="0")
    for children in ([], ["0"]):
        sharded = shard(network(), KINDS[2], children, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        with torch.no_grad():
            assert sharded(images).dtype == torch.bfloat16
        assert torch.equal(explainers.grad_cam(sharded, images, 1, layer="0"), expected)


class Tied(nn.Module):
    """Two layers with one weight, a method that `register_fsdp_forward_method` wraps, and a hook of the user."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
        self.second.weight = self.first.weight
        self.first.register_forward_hook(lambda module, inputs, output: 2 * output)

    def features(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).mean((2, 3))


@each_kind
def test_shared_weights_wrapped_methods_and_hooks_of_the_user(group, kind):
    from torch.distributed.fsdp import register_fsdp_forward_method

    images, net = images_of(0).float(), shard(Tied(), kind)
    register_fsdp_forward_method(net, "features")
    copies: list[nn.Module] = []
    net.register_forward_pre_hook(lambda module, inputs: copies.append(module))
    for name in ("grad_cam", "saliency", "lrp"):
        assert torch.equal(METHODS[name](net, images, 1), METHODS[name](Tied(), images, 1))
    if kind == "fully_shard":
        assert {type(copy) for copy in copies} == {Tied}
        assert all(copy.first.weight is copy.second.weight for copy in copies)


@each_kind
def test_a_forward_function_is_refused(group, kind):
    net = shard(residual(), kind)
    with pytest.raises(UnsupportedModel, match=r"forward= runs the model itself.*get_model_state_dict"):
        explainers.saliency(net, images_of(0), forward=lambda images: net(images))


def test_other_ways_to_shard_are_refused(group, monkeypatch):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    images = images_of(0).float()

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

    def split(module: nn.Module, inputs: Any, mesh: Any) -> Any:
        return distribute_tensor(inputs[0], mesh, [Replicate()])

    by_hand, both = network(), network()
    by_hand[0].weight = nn.Parameter(distribute_tensor(by_hand[0].weight.detach(), mesh["tensor"], [Shard(0)]))
    distribute_module(both[3], mesh["tensor"], input_fn=split)
    shard(both, "fully_shard", mesh=mesh["data"])
    for net in (by_hand, both):
        with pytest.raises(UnsupportedModel, match=r"device mesh \(DTensor\)\. Explain an ordinary copy"):
            explainers.saliency(net, images)

    net = shard(network(), "fully_shard")
    monkeypatch.setattr(type(net[0].weight.device_mesh), "device_type", "cuda")
    with pytest.raises(UnsupportedModel, match=r"fully_shard, which keeps them on the cpu.*ordinary copy"):
        explainers.saliency(net, images)
