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
    if isinstance(one, Tensor):
        return one.shape == two.shape and bool(torch.allclose(one, two, rtol=1e-9, atol=1e-12))
    return bool(one == two)


def results_that_differ(rank: int, kind: str) -> list[str]:
    """Return the methods and functions with other results for the sharded network, in training mode or not."""
    images, plain, net = images_of(rank), residual(), shard(residual(), kind, UNITS).train()
    inside = "layer1.conv1" if kind == "fully_shard" else "layer1._fsdp_wrapped_module.conv1"
    test = {"order": "logit", "seeds": 1}
    maps = explainers.saliency(plain, images, 1).sum(1)

    def explain(model: nn.Module, layer: Any = None) -> Any:
        found = explainers.explain("grad_cam", model, images, layer=layer)
        return found.map.tolist(), found.layer, found.score, found.statistics, found.findings

    calls: dict[str, Any] = {
        f"{name}, call {n}": lambda model, name=name: METHODS[name](model, images) for name in QUICK for n in (1, 2)
    }
    calls |= {
        "explain": explain,
        "layer as a module": lambda model: explain(model, model.layer2),
        "layer in a unit": lambda model: explain(model, "layer1.conv1"),
        "layer by the name in the wrapper": lambda model: explain(model, "layer1.conv1" if model is plain else inside),
        "unknown layer": lambda model: explainers.grad_cam(model, images, layer="layer1.conv9"),
        "layers": lambda model: [
            (each.name, each.receptive_field((1, 1)) if each.grid and min(each.grid) > 1 else None)
            for each in explainers.list_layers(model, images)
        ],
        "default": lambda model: explainers.default_layer(model, images),
        "evaluate": lambda model: str(explainers.evaluate(model, images, maps=maps, target=1, steps=4)),
        "randomize": lambda model: str(explainers.randomization_test(model, images, "saliency", **test)),
    }
    differ = [name for name, call in calls.items() if not same(result(call, plain), result(call, net))]
    assert all(module.training for module in net.modules())
    assert all(parameter.grad is None for parameter in net.parameters())
    return differ


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


def differences(rank: int, kind: str) -> tuple[list[str], bool]:
    """Return the calls with other results, and whether calls change training."""
    both = [train(shard(residual(), kind, UNITS), images_of(rank), explained) for explained in (False, True)]
    return results_that_differ(rank, kind), len(both[0]) < 3 or not all(map(torch.equal, *both))


@quick_kind
def test_results_of_two_processes_with_different_images(tmp_path, kind):
    assert in_processes(differences, tmp_path, kind) == [([], False)] * 2


class Tied(nn.Module):
    """Two layers with one weight, a method that `register_fsdp_forward_method` wraps, and hooks of the user."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
        self.second.weight = self.first.weight
        self.first.register_forward_hook(lambda module, inputs, output: 2 * output)
        self.register_forward_pre_hook(lambda module, inputs: seen.append(weakref.ref(module.first.weight)))
        self.register_forward_pre_hook(lambda module, inputs: seen.append(module.first.weight is module.second.weight))

    def features(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).mean((2, 3))


@each_kind
def test_shared_weights_wrapped_methods_and_hooks_of_the_user_and_full_parameters_are_freed(group, kind):
    from torch.distributed.fsdp import register_fsdp_forward_method

    seen: list[Any] = []
    images, net = images_of(0).float(), shard(Tied(seen), kind)
    register_fsdp_forward_method(net, "features")
    gc.collect()
    gc.disable()
    try:
        for name in QUICK:
            seen.clear()
            expected = METHODS[name](Tied([]), images, 1)
            assert torch.equal(METHODS[name](net, images, 1), expected), name
            weights = [each() for each in seen if isinstance(each, weakref.ref)]
            assert weights and not any(each is not None for each in weights), name
            assert METHODS[name].long or False not in seen, "the fused copy has its own weights"
    finally:
        gc.enable()


@each_kind
def test_hooks_in_passes_of_the_user_see_whole_activations(group, kind):
    images, found = images_of(0), []
    for model in (residual(), shard(residual(), kind, UNITS).eval()):
        with explainers.capture(model, ["conv1", "layer2.conv1"], gradients=True) as captured:
            with explainers.input_gradients(model, "layer2") as gradients:
                model(images)[:, 1].sum().backward()
        with explainers.edit_outputs(model, {"layer1": lambda output: 2 * output}):
            edited = model(images).detach()
        inner = captured.inputs["layer2.conv1"], captured.gradients["layer2.conv1"], gradients.grad_input["layer2"]
        found.append([captured.outputs["conv1"], *inner, edited])
    assert all(map(same, *found))


def head() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def test_weights_have_the_precision_in_which_they_are_stored(group):
    """Also those of the root, which stay in the lower precision after a pass."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    images = images_of(0).float()
    expected = explainers.grad_cam(head(), images, 1, layer="0")
    for children in ([], ["0"]):
        sharded = shard(head(), KINDS[2], children, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        with torch.no_grad():
            assert sharded(images).dtype == torch.bfloat16
        assert torch.equal(explainers.grad_cam(sharded, images, 1, layer="0"), expected)


def test_forward_functions_and_other_ways_to_shard_are_refused(group, monkeypatch):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    mesh, images = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor")), images_of(0).float()

    def split(module: nn.Module, inputs: Any, mesh: Any) -> Any:
        return distribute_tensor(inputs[0], mesh, [Replicate()])

    def refuses(net: nn.Module, words: str, **options: Any) -> None:
        with pytest.raises(UnsupportedModel, match=words):
            explainers.saliency(net, images, **options)

    for kind in KINDS:
        net = shard(head(), kind)
        refuses(net, "forward= runs the model itself.*get_model_state_dict", forward=lambda x, net=net: net(x))
    by_hand, both = head(), head()
    by_hand[0].weight = nn.Parameter(distribute_tensor(by_hand[0].weight.detach(), mesh["tensor"], [Shard(0)]))
    distribute_module(both[4], mesh["tensor"], input_fn=split)
    shard(both, "fully_shard", mesh=mesh["data"])
    refuses(by_hand, r"device mesh \(DTensor\)\. Explain an ordinary copy")
    refuses(both, r"device mesh \(DTensor\)\. Explain an ordinary copy")
    monkeypatch.setattr(type(net[0].weight.device_mesh), "device_type", "cuda")
    refuses(net, "fully_shard, which keeps them on the cpu.*ordinary copy")
