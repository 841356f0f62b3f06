"""Two models compared with numbers by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from explainers import BadImages, BadOption, BadTarget, compare_models, grad_cam
from explainers.experiments.comparison.similarity import gram_matrix, linear_cka
from explainers.maps.resize import rank_correlation
from tests.support.nets import plain, random_images
from tests.support.traces import nothing_left


def images(count: int = 6):
    return random_images(count, height=16, width=16).double()


def test_a_model_equals_itself():
    net, x = plain(), images()
    found = compare_models(net, copy.deepcopy(net), x)
    assert found.changed == []
    assert found.first_difference is None
    assert set(found.differences.values()) == {0.0}
    torch.testing.assert_close(found.map_correlations, torch.ones(6).double())
    torch.testing.assert_close(found.similarity.diagonal(), torch.ones(len(found.layers_a)))
    torch.testing.assert_close(found.scores_a, net(x))
    assert nothing_left(net)


def test_the_first_changed_layer_is_found():
    net, x = plain(), images()
    names = [name for name, module in net.named_modules() if isinstance(module, nn.Conv2d)]
    other = copy.deepcopy(net)
    other.get_submodule(names[1]).weight.data *= -1
    found = compare_models(net, other, x)
    assert found.first_difference == names[1]
    earlier = list(found.differences)[: list(found.differences).index(names[1])]
    assert earlier and all(found.differences[name] == 0 for name in earlier)
    assert compare_models(net, other, x, tolerance=10).first_difference is None


def test_changed_predictions_and_maps_are_those_of_each_model():
    net, other, x = plain(), plain(), images()
    for parameter in other.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    found = compare_models(net, other, x, relu=False)
    a, b = net(x), other(x)
    assert found.changed == (a.argmax(1) != b.argmax(1)).nonzero()[:, 0].tolist()
    maps = [grad_cam(each, x, a.argmax(1), relu=False) for each in (net, other)]
    torch.testing.assert_close(found.maps_a, maps[0])
    torch.testing.assert_close(found.maps_b, maps[1])
    torch.testing.assert_close(found.map_correlations, rank_correlation(*maps))


def test_other_sizes_and_architectures():
    layers = nn.Conv2d(3, 5, 5, stride=2), nn.ReLU(), nn.Conv2d(5, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    net, other = plain(), nn.Sequential(*layers).double()
    small, large = images(), random_images(6, height=40, width=40).double()
    found = compare_models(net, other, small, images_b=large)
    assert found.differences == {} and found.first_difference is None
    assert found.maps_a.shape == found.maps_b.shape
    assert found.similarity.shape == (len(found.layers_a), len(found.layers_b))


def test_cka_by_hand_and_its_invariances():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 5, generator=generator).double()
    y = x[:, :2] + 0.5 * torch.randn(9, 2, generator=generator)
    k, m = gram_matrix(x), gram_matrix(y)

    def hsic(a, b):  # Song et al. 2012, equation 5, term by term
        a, b, n = a.clone().fill_diagonal_(0), b.clone().fill_diagonal_(0), len(a)
        one = torch.ones(n, 1).double()
        total = torch.trace(a @ b) + (one.T @ a @ one * (one.T @ b @ one)).item() / ((n - 1) * (n - 2))
        return (total - 2 / (n - 2) * (one.T @ a @ b @ one).item()) / (n * (n - 3))

    expected = hsic(k, m) / (hsic(k, k) * hsic(m, m)) ** 0.5
    assert linear_cka(k, m) == pytest.approx(float(expected))
    turned = x @ torch.linalg.qr(torch.randn(5, 5, generator=generator).double())[0]
    assert linear_cka(k, gram_matrix(3 * turned + 7)) == pytest.approx(1)


def test_cka_of_unrelated_features_is_about_zero():
    generator = torch.Generator().manual_seed(0)
    found = [linear_cka(*(gram_matrix(torch.randn(20, 500, generator=generator)) for _ in range(2))) for _ in range(20)]
    assert abs(sum(found) / len(found)) < 0.05  # the biased estimate is 0.96
    assert torch.isnan(torch.tensor(linear_cka(gram_matrix(torch.randn(3, 5)), gram_matrix(torch.randn(3, 5)))))


def test_few_images_have_no_cka():
    assert compare_models(plain(), plain(), images(2)).similarity.isnan().all()


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"images_b": images(2)}, BadImages, "has 6 images and images_b has 2"),
        ({"model_b": plain(classes=3)}, BadTarget, "7 and 3 classes"),
        ({"method": "channel_effects"}, BadOption, "does not return maps"),
        ({"tolerance": -1}, BadOption, "tolerance=-1"),
        ({"method": "grad_cm"}, BadOption, "grad_cam"),
    ],
)
def test_wrong_uses_are_refused(keywords, error, message):
    with pytest.raises(error, match=message):
        compare_models(**({"model_a": plain(), "model_b": plain(), "images": images()} | keywords))


def test_outputs_of_stages_are_not_kept(monkeypatch: pytest.MonkeyPatch):
    """Each Gram matrix is computed when its stage returns, not after the pass."""
    net, x = plain(), images()
    runs: list[bool] = [False]
    during: list[bool] = []
    module = "explainers.experiments.comparison.compare.gram_matrix"
    monkeypatch.setattr(module, lambda output: (during.append(runs[-1]), gram_matrix(output))[1])
    hooks = [
        net.register_forward_pre_hook(lambda *_: runs.append(True)),
        net.register_forward_hook(lambda *_: runs.append(False)),
    ]
    compare_models(net, net, x)
    for hook in hooks:
        hook.remove()
    assert during and all(during)
