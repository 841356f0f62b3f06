"""Where other libraries are wrong or slow: layers, outputs, modes and wrappers; units, warnings, values and cost."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
import torchvision
from torch import nn

import explainers
from explainers import METHODS, ExplainerError, Logit, default_layer, explain, feature_maps, grad_cam, saliency
from tests.support import nets
from tests.support.calls import NAMES, OF_LAYERS, call, codes
from tests.support.nets import act_grad, cam_by_hand, check_once, plain, random_images, rel, residual, settle
from tests.support.oracles import drops_by_hand
from tests.support.token_nets import swin_v1, vit

pytestmark = pytest.mark.sample


def noise_images(n=2, height=64, width=96):
    return random_images(n, 3, height, width).float()


models = torchvision.models
SMALL = {
    # torchvision's networks with fewer blocks and channels, and the names of its layers
    "resnet18": lambda: models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 2], num_classes=9),
    "densenet121": lambda: models.DenseNet(8, (2, 2, 2), 16, num_classes=9),
    "vgg11": lambda: models.VGG(models.vgg.make_layers(VGG), 9, init_weights=False),
    "mobilenet_v2": lambda: models.MobileNetV2(9, 0.25),
    "squeezenet1_1": lambda: models.SqueezeNet("1_1", 9),
}
VGG = [8, "M", 8, "M", 16, 16, "M", 16, 16, "M", 16, 16, "M"]


@functools.cache
def network(name):
    net = SMALL[name]()
    if name == "vgg11":  # only its features are needed; its classifier is large
        net.classifier = nn.Linear(16 * 49, 9)
    return settle(net)


# D. In-place operations


def half_active(net, layer, x):
    """Classes whose own channel is positive in some cells and negative in others."""
    a = feature_maps(net, x, layer=layer)
    return ((a > 0).float().mean((2, 3)) * (a < 0).float().mean((2, 3))).argmax(1).tolist()


IN_PLACE = {
    "p45": ("resnet18", "layer4.1.bn2"),
    "p46": ("resnet18", "bn1"),
    "p47": ("resnet18", "layer4.0.bn1"),
    "p48": ("densenet121", "features"),
    "p48_norm5": ("densenet121", "features.norm5"),
    "p49": ("vgg11", "features.18"),
    "p50": ("mobilenet_v2", "features.18.1"),
    "p51": ("squeezenet1_1", "classifier.1"),
}


@pytest.mark.parametrize(("name", "layer"), IN_PLACE.values(), ids=IN_PLACE)
def test_p45_to_p51_a_layer_before_an_in_place_operation(name, layer):
    """The captured activation is bit-equal to a cloning hook's, the map right, the network's output untouched.

    The network may be frozen, and nothing but the captured layer need a gradient.
    """
    net, x = network(name), noise_images()
    classes = half_active(net, layer, x) if name == "squeezenet1_1" else nets.top(net, x)
    a, g, scores = act_grad(net, net.get_submodule(layer), x, classes)
    assert a.min() < 0, "the following in-place operation would remove the negative values"
    net.requires_grad_(False)
    with explainers.capture(net, layer, gradients=True) as seen:
        captured = net(x)
        captured[range(len(x)), classes].sum().backward()
    net.requires_grad_(True)
    assert torch.equal(seen.outputs[layer], a) and rel(seen.gradients[layer], g) < 1e-5
    assert torch.equal(captured, net(x)) and torch.equal(captured.detach(), scores)
    assert torch.equal(feature_maps(net, x, layer=layer), a)
    expected = (g.mean((2, 3), keepdim=True) * a).sum(1)
    assert rel(grad_cam(net, x, classes, layer=layer, relu=False), expected) < 1e-5
    assert rel(explainers.hires_cam(net, x, classes, layer=layer), (g * a).sum(1)) < 1e-5
    overwritten = (g.mean((2, 3), keepdim=True) * a.relu()).sum(1)
    assert rel(overwritten, expected) > 1e-3, "the case must tell the tensor from its own ReLU"


def test_p52_a_convolution_called_twice_has_a_map_for_each_call():
    net, x, boxes = settle(nets.Twice().double()), random_images(), []
    handle = net.conv.register_forward_hook(lambda m, i, output: (boxes.append(output), output.clone())[1])
    scores = net(x.clone().requires_grad_())
    handle.remove()
    grads = torch.autograd.grad(scores[:, 1].sum(), boxes)
    maps = [grad_cam(net, x, 1, layer=f"conv#{k}", relu=False) for k in (0, 1)]
    for found, a, g in zip(maps, boxes, grads, strict=True):
        torch.testing.assert_close(found, (g.mean((2, 3), keepdim=True) * a).sum(1).detach(), rtol=1e-10, atol=1e-13)
    assert maps[0].shape != maps[1].shape
    for layer in ("conv", net.conv):
        with pytest.raises(ExplainerError, match="conv#0.*conv#1"):
            grad_cam(net, x, 1, layer=layer)


@pytest.mark.parametrize("name", [name for name in OF_LAYERS if name != "cam"])  # CAM explains only the last layer
def test_p54_layer_that_gives_a_tuple_is_refused_with_the_remedy(name):
    def twice(self, x):
        return (y := self.conv(x)), 2 * y

    pair = nets.Written(twice, conv=nn.Conv2d(3, 4, 3, padding=1))
    net = nets.Written(lambda self, x: self.fc(sum(self.pair(x)).relu().mean((2, 3))), pair=pair, fc=nn.Linear(4, 5))
    net, x = settle(net.double()), random_images()
    with pytest.raises((TypeError, ExplainerError), match="pair.*tuple|tuple.*pair"):
        call(name, net, x, 1, layer="pair")
    assert call(name, net, x, 1, layer="pair.conv").isfinite().all()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("cam", "finer_cam")])  # they need a class
def test_p55_dictionary_output_reaches_the_target_raw(name):
    net, x = settle(nets.DictNet().double()), random_images()
    layer = {"layer": "net.conv2"} if name in OF_LAYERS else {}
    result = call(name, net, x, lambda output: output["out"][:, 2].mean((1, 2)), **layer)
    assert result.isfinite().all()
    if METHODS[name].reads_class:
        with pytest.raises(ValueError, match="dict"):
            call(name, net, x, 1, **layer)


def test_p56_googlenet_with_auxiliary_outputs_in_train_mode():
    net = models.googlenet(weights=None, aux_logits=True, init_weights=False, num_classes=9).eval()
    x = noise_images(1, 64, 64)
    expected = grad_cam(net, x, 3, layer="inception5b")
    slope = saliency(net, x, 3)
    net.train()
    assert rel(grad_cam(net, x, 3, layer="inception5b"), expected) < 1e-5
    assert rel(saliency(net, x, 3), slope) < 1e-5
    assert net.training and net.inception5b.training


# F. Modes, dtypes, wrappers


def test_p75_default_layer_is_the_last_spatial_stage():
    for name in ("vgg11", "squeezenet1_1", "densenet121", "mobilenet_v2"):
        assert default_layer(network(name), noise_images(1, 128, 160)) == "features", name
    assert default_layer(swin_v1().float(), noise_images(1)) == "norm"
    assert default_layer(vit(), random_images(1, 3, 64, 64)) == "encoder.layers.encoder_layer_2.ln_1"


FROZEN = {
    "traced": lambda: torch.jit.trace(residual(), random_images(), check_trace=False),
    "scripted": lambda: torch.jit.script(plain()),
    "exported": lambda: torch.export.export(residual(), (random_images(),)).module(),
}


@functools.cache
def frozen(kind):
    return FROZEN[kind]()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FROZEN)
def test_p76_p77_models_without_hooks_are_refused_or_explained_correctly(kind):
    """Never the plain gradient instead of another map; a refusal names the kind and a method that works."""
    net, original, x = frozen(kind), plain() if kind == "scripted" else residual(), random_images()
    for name in NAMES:
        method = METHODS[name]
        if method.takes_layer:
            assert kind in method.applies(net), name
            for where in ({}, {"layer": "conv1"}):
                with pytest.raises(ExplainerError, match=f"{kind}.*saliency"):
                    call(name, net, x, 1, **where)
        elif method.needs is None:
            assert method.applies(net) is None, name
    for name in ("saliency", "integrated_gradients", "smooth_grad", "occlusion", "rise", "guided_backprop"):
        options = {"batch_size": 3} if kind == "exported" and METHODS[name].long else {}
        try:
            found = call(name, net, x, 1, **options)
        except ExplainerError as refusal:
            assert name == "guided_backprop" and kind in str(refusal) and "saliency" in str(refusal)
        else:
            torch.testing.assert_close(found, call(name, original, x, 1), rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore")
def test_p78_compiled_models_are_unwrapped():
    """`aot_eager` builds the graphs that hide hooks without needing a C++ compiler. Also after the first run."""
    net, x = residual(), random_images()
    expected = {name: call(name, net, x, 1) for name in ("grad_cam", "guided_backprop", "channel_effects", "saliency")}
    compiled = torch.compile(net, backend="aot_eager")
    for _ in ("fresh", "compiled before"):
        for name, wanted in expected.items():
            torch.testing.assert_close(call(name, compiled, x, 1), wanted)
        torch.testing.assert_close(grad_cam(compiled, x, 1, layer="layer1"), grad_cam(net, x, 1, layer="layer1"))
        compiled(x)
    inner = residual()
    inner.layer2 = torch.compile(inner.layer2, backend="aot_eager")
    net.compile(backend="aot_eager")
    for model in (inner, net):
        model(x)
        for name in ("grad_cam", "guided_backprop"):
            torch.testing.assert_close(call(name, model, x, 1), expected[name])
    torch._dynamo.reset()


def test_p79_distributed_data_parallel_is_unwrapped(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net, x = residual(), random_images()
        wrapped = nn.parallel.DistributedDataParallel(net)
        torch.testing.assert_close(grad_cam(wrapped, x, 1, layer="layer2"), grad_cam(net, x, 1, layer="layer2"))
        torch.testing.assert_close(explainers.guided_backprop(wrapped, x, 1), explainers.guided_backprop(net, x, 1))
    finally:
        torch.distributed.destroy_process_group()


def test_p80_a_refused_model_fails_once_and_prints_nothing(capfd):
    with pytest.raises(explainers.UnsupportedModel):
        grad_cam(frozen("scripted"), random_images())
    gc.collect()
    assert capfd.readouterr() == ("", "")


# Units, warnings, values and cost


def test_p20_uniform_positive_map_is_a_quarter_everywhere():
    found = grad_cam(nets.Uniform(), torch.ones(1, 1, 2, 2), 0, layer="conv")
    assert torch.equal(found, torch.full((1, 2, 2), 0.25))
    assert "flat" in codes(explain("grad_cam", nets.Uniform(), torch.ones(1, 1, 2, 2), 0, layer="conv"))


def test_p21_negative_sums_are_kept_and_reported():
    x = torch.ones(1, 1, 2, 2)
    assert torch.equal(grad_cam(nets.Uniform(), x, 1, layer="conv", relu=False), torch.full((1, 2, 2), -0.25))
    e = explain("grad_cam", nets.Uniform(), x, 1, layer="conv")
    assert e.map.eq(0).all() and torch.equal(e.raw, torch.full((1, 2, 2), -0.25))
    assert "nothing_positive" in codes(e)
    (finding,) = [f for f in e.findings[0] if f.code == "nothing_positive"]
    x[0, 0, 0, 0] = 3.0
    given = {"method": "grad_cam", "model": nets.Uniform(), "images": x, "target": 1, "layer": "conv"}
    assert explain(**(given | finding.remedy)).map.any()


def test_p22_a_map_of_one_cell_has_its_value():
    net, x = network("resnet18"), torch.randn(2, 3, 32, 32)
    expected = cam_by_hand(net, net.layer4, x, [3, 5])
    assert expected.shape == (2, 1, 1)
    actual = grad_cam(net, x, [3, 5], layer="layer4", relu=False)
    assert rel(actual, expected) < 1e-5 and (actual != 0).all()
    assert "nothing_spatial" in codes(explain("grad_cam", net, x, [3, 5], layer="layer4"))


def test_p23_saturated_softmax_is_a_finding_and_the_logit_is_not():
    net, x = residual().float(), random_images().float()
    net.fc.weight.data *= 1e4
    best = net(x).argmax(1).tolist()
    assert "saturated" in codes(explain("grad_cam", net, x, explainers.Probability(best)))
    assert "saturated" not in codes(explain("grad_cam", net, x, best))
    assert explain("grad_cam", net, x, Logit(best), relu=False).map.any()
    assert explain("grad_cam", net, x).target == best, "the default target is the logit of the top class"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_p30_p31_grad_cam_pp_is_equation_19_without_an_epsilon(dtype):
    """By hand; a coefficient that is never applied is far off.

    Gradients of 1e-4 and below: g^2 is 1e-8, where an epsilon of 1e-6 dominates, and g^3 underflows in float16.
    """
    net, x = plain().double(), random_images()
    net.head.weight.data *= 0.01
    net, x = net.to(dtype), x.to(dtype)
    a, g, _ = act_grad(net, net.relu2, x, [2, 0, 5])
    a, g = a.double(), g.double()
    assert g.abs().median() < 1e-3
    denominator = 2 * g**2 + a.sum((2, 3), keepdim=True) * g**3
    alpha = torch.where(denominator != 0, g**2 / denominator, 0)
    expected = ((alpha * g.relu()).sum((2, 3), keepdim=True) * a).sum(1).relu()
    assert rel(explainers.grad_cam_pp(net, x, [2, 0, 5], layer="relu2"), expected) < 1e-5
    with_epsilon = ((g**2 / (denominator + 1e-6) * g.relu()).sum((2, 3), keepdim=True) * a).sum(1).relu()
    assert rel(with_epsilon, expected) > 0.1


def test_p37_p38_ablation_weights_are_drops_for_every_chunk():
    """Whatever the sign of the score and of the layer; zero is the baseline, and the chunk size plays no part."""
    net, x = residual(), random_images(2)
    net.fc.bias.data -= net(x).max().detach() + 1
    drops, a = drops_by_hand(net, net.layer2.bn2, x, [2, 0])
    assert a.min() < 0
    expected = torch.einsum("nk,nkhw->nhw", drops, a)
    for size in (1, 4, 32):
        options = {"layer": "layer2.bn2", "batch_size": size}
        torch.testing.assert_close(explainers.channel_effects(net, x, [2, 0], **options), drops, rtol=1e-9, atol=1e-12)
        found = explainers.ablation_cam(net, x, [2, 0], relu=False, **options)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_p39_a_sweep_does_not_depend_on_the_order_of_layers():
    """Also around a layer that returns its input, as Dropout does: its gradient must exclude that of the skip."""

    def skip(net, x):
        y = net.conv(x)
        return net.fc((y + torch.tanh(net.drop(y))).mean((2, 3)))

    around = nets.Written(skip, conv=nn.Conv2d(3, 4, 3, padding=1), drop=nn.Dropout(0.5), fc=nn.Linear(4, 5))
    x = random_images()  # all layers of the first network have the same number of channels
    for net, layers in ((nets.Residual(width=8), ["layer1", "layer2"]), (around, ["conv", "drop"])):
        settle(net.double())
        forward = explainers.grad_cam_sweep(net, x, 1, layers=layers, relu=False)
        backward = explainers.grad_cam_sweep(net, x, 1, layers=layers[::-1], relu=False)
        assert set(forward) == set(backward) == set(layers)
        for name in layers:
            assert torch.equal(forward[name], backward[name])
            alone = grad_cam(net, x, 1, layer=name, relu=False)
            torch.testing.assert_close(forward[name], alone, rtol=1e-10, atol=1e-14)
        assert not torch.equal(*forward.values())


def batch_sizes(module, work):
    """Batch sizes of the forward passes through `module` while `work` ran."""
    seen = []
    handle = module.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    work()
    handle.remove()
    return seen


def test_p106_grad_cam_and_its_explanation_are_one_forward_which_builds_no_graph_before_the_layer():
    net, x = residual(), random_images()
    grad_cam(net, x, layer="layer2")
    assert batch_sizes(net.conv1, lambda: grad_cam(net, x, layer="layer2")) == [3]
    assert batch_sizes(net.conv1, lambda: explain("grad_cam", net, x)) == [3], "none for the runner-up's map either"
    modes = []
    handle = net.layer1.register_forward_hook(lambda m, i, o: modes.append(o.requires_grad))
    grad_cam(net, x, layer="layer2")
    handle.remove()
    assert modes == [False], "idea 1: the graph starts at the layer"


@pytest.mark.parametrize("method", [explainers.ablation_cam, explainers.channel_effects], ids=lambda m: m.__name__)
def test_p107_stages_before_the_ablated_layer_do_not_see_the_copies(method):
    """Idea 4: the prefix runs with one image per chunk, only the rest with a copy for each channel."""
    net, x = residual(), random_images(1)
    check_once(net, x)
    before = batch_sizes(net.layer1, lambda: method(net, x, 1, layer="layer2"))
    after = batch_sizes(net.avgpool, lambda: method(net, x, 1, layer="layer2"))
    assert max(before) == 1 and len(before) <= 3
    assert sum(after) >= 6
