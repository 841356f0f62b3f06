"""Interventions and the smallest region, with the rest of the network by hand and an exhaustive search."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import Swap, intervene, patch_effects, smallest_region
from explainers.perturbation.baselines import baseline_of
from tests.support.nets import Written, plain, random_images, residual
from tests.support.token_nets import plain_vit
from tests.support.traces import nothing_left

CHOSEN = [1, 4]


def images(seed: int = 7) -> Tensor:
    return random_images(2, seed=seed).double()


@pytest.mark.parametrize(
    ("value", "new"),
    [
        (0, torch.zeros_like),
        (1.5, lambda a: torch.full_like(a, 1.5)),
        (explainers.Scale(-2), lambda a: -2 * a),
        (explainers.Clamp(0.1, 0.2), lambda a: a.clamp(0.1, 0.2)),
        (explainers.Clamp(high=0.2), lambda a: a.clamp(max=0.2)),
        ("mean", lambda a: a.mean((2, 3), keepdim=True).expand_as(a)),
        (torch.tensor([2.0, 3.0]).view(2, 1, 1), lambda a: torch.tensor([2.0, 3.0]).view(2, 1, 1).expand_as(a)),
        (lambda a: a.flip(3), lambda a: a.flip(3)),
    ],
    ids="zero number scale clamp one_limit mean tensor function".split(),
)
def test_scores_are_those_of_the_changed_output_by_hand(value, new):
    net, x = plain(), images()
    a = net[:2](x)
    changed = a.clone()
    changed[:, CHOSEN] = new(a[:, CHOSEN]).to(a)
    with nothing_left(net, x):
        result = intervene(net, x, "relu1", channels=CHOSEN, value=value)
    torch.testing.assert_close(result.after, net[2:](changed))
    torch.testing.assert_close(result.before, net(x))
    torch.testing.assert_close(result.change, result.after - result.before)
    assert result.change.abs().min() > 0 and result.score == "softmax"
    assert "relu1, 2 channels" in repr(result)


def test_a_network_without_classes_has_the_score_of_the_target():
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1)).double(), images()
    for target in (lambda maps: maps[:, 2].mean((1, 2)), explainers.MaskScores(torch.ones(10, 14), 2)):
        result = intervene(net, x, "1", target, value=1.5)
        constant = (net[2].weight[2].sum() * 1.5 + net[2].bias[2]).detach()
        assert (result.after == constant).all()
        torch.testing.assert_close(result.before[:, 0], net(x)[:, 2].mean((1, 2)).detach())
        assert torch.equal(result.after[:, 0], result.target_after) and result.score == "logit"


def test_cells_change_only_where_they_are():
    net, x = plain(), images()
    cells, mask = [(0, 1), (3, 2)], torch.zeros(12, 16, dtype=torch.bool)
    mask[0, 1] = mask[3, 2] = True
    changed = net[:2](x).clone()
    changed[:, 2, mask] = 5
    for given in (cells, mask, torch.tensor(cells)):
        result = intervene(net, x, "relu1", channels=2, cells=given, value=5)
        torch.testing.assert_close(result.after, net[2:](changed))
        assert result.cells == 2


def test_swapped_activations_are_those_of_the_other_image():
    net, x, other = plain(), images(), images(8)
    changed = net[:2](x).clone()
    for source in (other, other[:1]):
        changed[:, CHOSEN] = net[:2](source)[:, CHOSEN]
        result = intervene(net, x, "relu1", channels=CHOSEN, value=Swap(source))
        torch.testing.assert_close(result.after, net[2:](changed))
    torch.testing.assert_close(intervene(net, x, "relu1", value=Swap(other)).after, net(other))


def test_patching_position_by_position_by_hand():
    """Oracle: the rest of the network on an output with one position of the other image."""
    net, x, other = plain(), images(), images(8)
    for source, channels in itertools.product((other, other[:1]), (None, CHOSEN)):
        which = range(6) if channels is None else channels
        with nothing_left(net, x, source):
            found = patch_effects(net, x, source, 3, layer="relu1", channels=channels, batch_size=7)
        assert found.shape == (2, 12, 16)
        for row, column in ((0, 0), (2, 5), (5, 7)):
            changed = net[:2](x).clone()
            changed[:, which, row, column] = net[:2](source)[:, which, row, column]
            torch.testing.assert_close(found[:, row, column], (net[2:](changed) - net(x))[:, 3])
    assert not patch_effects(net, x[:1], x[:1], layer="relu2", batch_size=1).any()
    stopped = patch_effects(net, x[:1], other[:1], 3, layer="relu1", channels=CHOSEN, batch_size=1, progress=two_steps)
    torch.testing.assert_close(stopped.flatten()[:2], found[0].flatten()[:2])
    assert not stopped.flatten()[2:].any()


def two_steps(partial: explainers.Partial) -> bool:
    return partial.done < 2


def test_noise_has_the_given_size_and_is_reproducible():
    net, x = plain(), images()
    old = 10 * net[:2](x)[:, CHOSEN].detach()
    noise, spread = explainers.AddNoise(0.5, seed=3)(old) - old, old.flatten(1).std(1, correction=0)
    torch.testing.assert_close(noise.flatten(1).std(1), 0.5 * spread, rtol=0.2, atol=0)
    one, same, other = (intervene(net, x, "relu1", value=explainers.AddNoise(0.5, seed)).after for seed in (3, 3, 4))
    assert torch.equal(one, same) and not torch.allclose(one, other)
    assert torch.equal(intervene(net, x, "relu1", value=explainers.AddNoise(0)).after, net(x))


@pytest.mark.parametrize(("cells", "positions"), [([(0, 1)], [2]), (None, range(7))])
def test_cells_of_tokens_skip_the_class_token_and_all_positions_include_it(cells, positions):
    """Token 0 is the class token, 1 and 2 are the first two cells."""
    net, x, other = plain_vit(extra=1), *(random_images(1, height=32, width=48, seed=seed) for seed in (7, 8))

    def edit(module, inputs, output):
        output = output.clone()
        for position in positions:
            output[:, position, [0, 2]] += 1
        return output

    hook = net.get_submodule("blocks.0").register_forward_hook(edit)
    expected = net(x)
    hook.remove()
    result = intervene(net, x, "blocks.0", channels=[0, 2], cells=cells, value=lambda old: old + 1)
    torch.testing.assert_close(result.after, expected)
    if cells:
        patched = patch_effects(net, x, other, 2, layer="blocks.0")
        one = intervene(net, x, "blocks.0", cells=cells, value=Swap(other))
        torch.testing.assert_close(patched[0, 0, 1], one.change[0, 2])


def test_a_layer_without_positions_has_channels():
    net, x = plain(), random_images(2)
    result = intervene(net, x, "head", channels=3, value=9)
    expected = net(x)
    expected[:, 3] = 9
    torch.testing.assert_close(result.after, expected)
    with pytest.raises(explainers.NoSpatialOutput):
        intervene(net, x, "head", cells=[(0, 0)])


def test_rows_that_run_separately_get_their_own_values():
    net = Written(lambda self, x: self.net(x - 0.1 * x.mean(0)), net=plain()).eval()  # rows depend on each other
    x, other = images(), images(8)
    result = intervene(net, x, "net.relu1", channels=CHOSEN, value=Swap(other))
    one_by_one = [
        intervene(net, x[n : n + 1], "net.relu1", channels=CHOSEN, value=Swap(other[n : n + 1])) for n in (0, 1)
    ]
    torch.testing.assert_close(result.after, torch.cat([each.after for each in one_by_one]))


def test_maps_under_the_intervention_are_those_of_a_changed_network():
    """Only in the calling thread."""
    net, x = plain(), images()
    expected, elsewhere = net(x), []
    result = intervene(net, x, "relu1", channels=CHOSEN)
    with result.applied(net):
        changed = explainers.grad_cam(net, x, 3, layer="relu2")
        torch.testing.assert_close(net(x), result.after)
        thread = threading.Thread(target=lambda: elsewhere.append(net(x)))
        thread.start()
        thread.join()
    torch.testing.assert_close(elsewhere[0], expected)
    net.conv2.weight.data[:, CHOSEN] = 0
    torch.testing.assert_close(changed, explainers.grad_cam(net, x, 3, layer="relu2"))


def test_top_classes_include_those_of_both_sides():
    before, after = torch.tensor([[3.0, 2.0, 1.0, 0.0]]), torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    for score, values in (("logit", (before[0], after[0])), ("softmax", (before.softmax(1)[0], after.softmax(1)[0]))):
        (rows,) = explainers.Intervention("layer", (0,), None, "", before, after, score, lambda output: output).top(2)
        for row, k in zip(rows, (0, 1, 3, 2), strict=True):
            numbers = [float(each[k]) for each in values]
            assert tuple(row) == pytest.approx((k, *numbers)) and row.change == pytest.approx(numbers[1] - numbers[0])


# The smallest region


def counts(need: int) -> nn.Module:
    """Class 1 if at least `need` pixels of the first channel are 1, else class 0."""

    def forward(self: nn.Module, images: Tensor) -> Tensor:
        count = images[:, 0].flatten(1).sum(1)
        return torch.stack([torch.full_like(count, need - 0.5), count], 1)

    return Written(forward)


def ramps(n: int = 1) -> Tensor:
    return torch.arange(n * 48.0).reshape(n, 6, 8)


def test_a_network_that_counts_pixels_needs_as_many():
    images = torch.ones(2, 3, 6, 8)
    kept = smallest_region(counts(17), images, ramps(2), baseline=0.0)
    assert kept.mask.flatten(1).sum(1).tolist() == [17, 17]
    assert bool(kept.mask.flatten(1)[:, -17:].all())  # the highest values are last
    assert kept.classes == [1, 1]
    assert kept.scores.tolist() == [[16.5, 17.0]] * 2
    changed = smallest_region(counts(17), images, ramps(2), baseline=0.0, goal="change")
    assert changed.mask.flatten(1).sum(1).tolist() == [48 - 16] * 2
    assert changed.scores[0].tolist() == [16.5, 16.0]
    assert changed.passes <= 3 + 6


def test_half_of_the_probability_needs_more_pixels():
    """Oracle: the probability with every number of pixels, of a network with two equal other classes."""

    three = Written(lambda self, x: 0.1 * self.two(x)[:, [0, 0, 1]], two=counts(17))
    images, numbers = torch.ones(1, 3, 6, 8), torch.arange(49.0)
    scores = 0.1 * torch.stack([torch.full((49,), 16.5), torch.full((49,), 16.5), numbers], 1)
    oracles = {None: scores.softmax(1)[:, 2], "sigmoid": (scores.sigmoid())[:, 2]}
    kept = smallest_region(three, images, ramps(), baseline=0.0)
    assert int(kept.mask.sum()) == 17
    for score, shares in oracles.items():
        half = smallest_region(three, images, ramps(), baseline=0.0, goal="half", score=score)
        need = int((shares >= shares[48] / 2).nonzero()[0])
        assert int(half.mask.sum()) == max(17, need) and half.classes == [2]
        assert need > 17 or score == "sigmoid"
    assert "half of the probability" in repr(half)


def test_goals_that_are_reached_at_once_or_never():
    images = torch.ones(1, 3, 6, 8)
    at_once = smallest_region(counts(0), images, ramps(), baseline=0.0)  # the baseline alone is class 1
    assert (int(at_once.mask.sum()), bool(at_once.reached)) == (0, True)
    never = smallest_region(counts(0), images, ramps(), baseline=0.0, goal="change")
    assert (float(never.fraction), bool(never.reached)) == (1.0, False)
    assert "not reached for 1" in repr(never)


@pytest.mark.parametrize("goal", ["keep", "change"])
@pytest.mark.parametrize("baseline", ["blur", "mean", 0.0])
def test_a_region_reaches_the_goal_and_one_pixel_less_does_not(goal, baseline):
    net, images = residual(), random_images(seed=3)
    e = explainers.explain("grad_cam", net, images, relu=False)
    with nothing_left(net):
        found = smallest_region(net, images, e, goal=goal, baseline=baseline)
    single = smallest_region(net, images[1:2], e.map[1:2], goal=goal, baseline=baseline)
    assert torch.equal(single.mask[0], found.mask[1])
    cover, values = baseline_of(images, baseline), e.upsample((12, 16))
    shown, hidden = (images, cover) if goal == "keep" else (cover, images)

    def reaches(n, pixels):
        inside = torch.zeros(12 * 16, dtype=torch.bool).index_fill(0, pixels, True).reshape(12, 16)
        same = int(net(torch.where(inside, shown[n], hidden[n])[None]).argmax()) == found.classes[n]
        return same == (goal == "keep")

    for n in range(3):
        count, order = int(found.mask[n].sum()), values[n].flatten().argsort(descending=True, stable=True)
        reached = bool(found.reached[n])
        assert reaches(n, order[:count]) == reached
        assert (count == 0 or not reaches(n, order[: count - 1])) if reached else count == 12 * 16
