"""The six silent failures of the peers, as contracts of every method: a wrong map without a warning.

    one target for three images         peers: blank maps from the second image on (P25)
    the last block of a ViT             peers: a black map (P82)
    Swin's layout                       peers: channels and width mixed up (P85)
    functional ReLU in guided methods   peers: the plain gradient (P57)
    a model left changed                peers: every later gradient of the model is guided (P12)
    division by a score                 peers: the map changes sign if the score is negative (P37)

A new method is covered automatically; where it cannot explain a network, `Method.applies` says why.
"""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explainers import METHODS, UnsupportedModel, UnsupportedOperation, explain, saliency
from tests.support.calls import small
from tests.support.nets import Activated, random_images, residual, settle
from tests.support.oracles.attention import two_blocks, wide_images
from tests.support.token_nets import swin_v1, vit

pytestmark = pytest.mark.sample

NAMES = list(METHODS)
OF_LAYERS = [name for name in NAMES if METHODS[name].takes_layer]
CLASSY = [name for name in NAMES if METHODS[name].reads_class]


def call(name: str, net: nn.Module, x: Tensor, target: object, **options: object) -> Tensor:
    """The method with few samples, signed: a final ReLU may rightly blank a map, before it nothing may be blank.

    An error that names the reason is not a silent failure.
    """
    method = METHODS[name]
    few = {key: max(value, method.options[key].low or value) for key, value in small(name).items()}
    if "relu" in method.options:
        few["relu"] = False
    try:
        return method(net, x, target, **(few | options))
    except (UnsupportedModel, UnsupportedOperation) as refusal:
        pytest.skip(str(refusal))


def fitting(name: str) -> tuple[nn.Module, Tensor]:
    """A small residual network, or a transformer for methods that need one, with images for it."""
    for net, x in ((residual(), random_images()), (two_blocks(), wide_images())):
        if (reason := METHODS[name].applies(net)) is None:
            return net, x
    pytest.skip(str(reason))


@pytest.mark.parametrize("name", CLASSY)
def test_one_target_for_a_batch_of_three(name):
    """Identity: an int is that class for each image; each map is the same as without the batch, and none is blank."""
    net, x = fitting(name)

    found = call(name, net, x, 1)

    assert len(found) == 3 and found.flatten(1).any(1).all()
    torch.testing.assert_close(found, call(name, net, x, [1, 1, 1]))
    alone = torch.cat([call(name, net, x[i : i + 1], 1) for i in range(3)])
    torch.testing.assert_close(found, alone, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", OF_LAYERS)
def test_the_last_vit_block(name):
    """Its patches have no gradient. The map is nonzero nevertheless, or a finding says why it is zero."""
    net, x, last = vit(), random_images(2, 3, 64, 64), "encoder.layers.encoder_layer_2"
    if (reason := METHODS[name].applies(net, last)) is not None:
        pytest.skip(reason)

    found = call(name, net, x, [1, 2], layer=last)

    assert found.flatten(1).any(1).all()


@pytest.mark.parametrize("name", OF_LAYERS)
def test_swins_layout(name):
    """Identity: `norm` keeps channels last, `permute` returns the same values with channels first."""
    net, x = swin_v1(8), random_images(2, 3, 32, 64)
    if (reason := METHODS[name].applies(net, "norm")) is not None:
        pytest.skip(reason)

    last = call(name, net, x, [1, 2], layer="norm")
    second = call(name, net, x, [1, 2], layer="permute")

    torch.testing.assert_close(last, second, rtol=1e-7, atol=1e-11)
    assert last.flatten(1).any(1).all()
    if METHODS[name].returns in ("grid", "features"):
        assert last.shape[-2:] == (4, 8)


@pytest.mark.parametrize("name", NAMES)
def test_functional_relu(name):
    """Identity: a ReLU is the same as a module, as a function, in place and shared; guided methods see all of them."""
    forms = [nn.ReLU(), nn.ReLU(inplace=True), F.relu, torch.Tensor.relu_]
    nets = [settle(Activated(form).double()) for form in forms]
    if (reason := METHODS[name].applies(nets[0])) is not None:
        pytest.skip(reason)
    # The default layer may be the module of the ReLU, which a function has not.
    named = {"layer": "conv2", "layers": ["conv1", "conv2"]}
    where = {key: value for key, value in named.items() if key in inspect.signature(METHODS[name].function).parameters}
    x = random_images(2)

    expected, *others = (call(name, net, x, [2, 0], **where) for net in nets)

    for other in others:
        torch.testing.assert_close(other, expected, rtol=1e-9, atol=1e-12)
    if name in ("guided_backprop", "deconvnet"):
        assert not torch.allclose(expected, saliency(nets[0], x, [2, 0]), rtol=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_model_left_changed(name):
    """The network's own modules, prediction and gradient are bit for bit what they were, after a map and a failure."""
    net, x = fitting(name)
    parts, weights = list(net.named_modules()), {key: value.clone() for key, value in net.state_dict().items()}

    def own() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        scores = net(leaf)
        return [scores.detach(), *torch.autograd.grad(scores[:, 1].sum(), leaf)]

    before = own()
    call(name, net, x, 1)
    if name in CLASSY:
        with pytest.raises(ValueError, match="5000"):
            call(name, net, x, 5000)

    assert [(key, id(part)) for key, part in net.named_modules()] == [(key, id(part)) for key, part in parts]
    assert all(torch.equal(value, weights[key]) for key, value in net.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(own(), before, strict=True))


@pytest.mark.parametrize("name", CLASSY)
def test_constant_added_to_the_logits(name):
    """Identity: no evidence has changed. A weight divided by the score would grow, vanish, or change sign."""
    net, x = fitting(name)
    head = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
    expected = call(name, net, x, 1)
    with torch.no_grad():
        before = net(x)[:, 1]
        head.bias.sub_(2 * before.max() + 10)
        assert (before > 0).any() and (net(x)[:, 1] < 0).all(), "scores must change their sign"

    torch.testing.assert_close(call(name, net, x, 1), expected, rtol=1e-6, atol=1e-9)


def test_each_failure_would_be_detected():
    """The peers' errors, made here: each comparison above tells them from the right map."""
    net, x = residual(), random_images()
    scores = net(x).detach()[:, 1]
    drops = explain("channel_effects", net, x, 1).raw
    assert not torch.allclose(drops / scores[:, None], drops / (scores - 50)[:, None]), "division by a score"
    swin, wide = swin_v1(8), random_images(1, 3, 32, 64)
    a = METHODS["feature_maps"](swin, wide, layer="norm")
    assert a.shape[1:] == (16, 4, 8), "channels first, whatever the network does"
