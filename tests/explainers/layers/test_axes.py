"""Which axis of a tensor is height or width, through views, slices, writes and splits; and which parts are read."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from explainers.layers.flow.axes import OTHER, Axis, Factor, concatenate_axes, full_axis, reshape_axes, slice_axis
from explainers.layers.flow.dataflow import Dataflow
from explainers.layers.flow.operation import Reads
from explainers.layers.flow.positions import even

H, W = full_axis("H", 6), full_axis("W", 8)


def test_windows_split_and_merged_again_are_the_image():
    """Swin windows by hand: six windows of 2 x 4 and back; in another order they are not a grid."""
    whole, parts, axes = (1, 6, 8, 5), (1, 3, 2, 2, 4, 5), (OTHER, H, W, OTHER)
    cut = reshape_axes(axes, whole, parts)
    assert cut[1:5] == tuple(Axis((Factor(*each),)) for each in (("H", 3, 2), ("H", 2, 1), ("W", 2, 4), ("W", 4, 1)))
    windows = reshape_axes(tuple(cut[i] for i in (0, 1, 3, 2, 4, 5)), parts, (6, 8, 5))
    assert [f.kind for f in windows[0].factors] == ["H", "W"] and windows[0].stride("H") == 2
    apart = reshape_axes(windows, (6, 8, 5), parts)
    assert reshape_axes(tuple(apart[i] for i in (0, 1, 3, 2, 4, 5)), parts, whole) == axes
    wrong = reshape_axes(apart, parts, whole)
    assert wrong[1] != H and wrong[2] != W


PATCHES = Axis((Factor("H", 6), Factor("W", 8)))


def test_views_join_and_cut_axes():
    lost = Axis(lost="a reshape across height and width")
    for old, new, expected in (
        ((1, 6, 8, 5), (1, 48, 5), (OTHER, PATCHES, OTHER)),
        ((1, 6, 8, 5), (48, 5), (PATCHES, OTHER)),
        ((1, 6, 8, 5), (1, 6, 40), (OTHER, H, Axis((Factor("W", 8), Factor("", 5, 0))))),
        ((1, 6, 8, 5), (1, 6, 8, 1, 5), (OTHER, H, W, OTHER, OTHER)),
        ((1, 6, 8, 5), (1, 16, 15), (OTHER, lost, lost)),  # 6 rows cannot be split into 16
    ):
        assert reshape_axes((OTHER, H, W, OTHER), old, new) == expected


def test_slices_and_concatenations_of_tokens_and_rows():
    tokens = Axis(PATCHES.factors, before=2)
    assert slice_axis(tokens, 50, 2, 48, 1) == PATCHES
    assert slice_axis(tokens, 50, 1, 49, 1).before == 1
    assert slice_axis(tokens, 50, 0, 1, 1) == OTHER and slice_axis(tokens, 50, 3, 20, 1) == OTHER
    assert slice_axis(H, 6, 0, 3, 2) == Axis((Factor("H", 3, 2),))
    assert concatenate_axes([(OTHER, 2), (PATCHES, 48), (OTHER, 1)]) == Axis(PATCHES.factors, 2, 1)
    assert concatenate_axes([(H, 6), (H, 6)]) == full_axis("H", 12)
    assert concatenate_axes([(PATCHES, 48), (PATCHES, 48)]) == OTHER


def test_a_write_into_part_of_a_tensor_changes_the_whole():
    """As in detectors: images are copied into a larger batch of zeros."""
    image = torch.randn(1, 3, 6, 8)
    with Dataflow(image) as flow:
        batch = torch.zeros(1, 3, 8, 12)
        batch[:, :, :6, :8].copy_(image)
        copied = batch * 2
    value = flow.value(copied)
    rows, columns = even(6).pad(0, 2), even(8).pad(0, 4)
    assert value is not None and value.axes[2:] == (full_axis("H", 8, rows), full_axis("W", 12, columns))


def test_reused_memory_has_no_axes():
    image = torch.randn(1, 3, 6, 8)
    with Dataflow(image) as flow:
        for _ in range(50):
            made = image * 2
            assert flow.value(made) is not None
            del made
            constant = torch.ones(1, 3, 6, 8)
            assert flow.value(constant) is None
            del constant


def test_dominators_are_the_nodes_that_all_paths_pass():
    image = torch.randn(1, 3, 6, 8)
    with Dataflow(image) as flow:
        a = image * 2
        b = a.relu()
        c = b + a
        d = c.tanh()
    nodes = [flow.value(t).node for t in (image, a, b, c, d)]
    passed = flow.graph.nodes_on_all_paths(nodes[-1])
    assert [node in passed for node in nodes] == [True, True, False, True, True]


def test_only_the_class_token_is_used_after_the_last_attention():
    image = torch.randn(1, 4, 2, 3)
    weight = torch.randn(4, 4)
    with Dataflow(image) as flow:
        tokens = torch.cat([torch.ones(1, 1, 4), image.flatten(2).mT], dim=1)
        mixed = (tokens @ tokens.mT).softmax(-1) @ tokens
        after = F.layer_norm(mixed @ weight, (4,))
        score = after[:, 0].sum(1)
    reads = flow.graph.reads(flow.value(score).node)
    assert reads[flow.value(tokens).node] == Reads.ALL
    assert reads[flow.value(mixed).node] == reads[flow.value(after).node] == Reads.EXTRA


def test_parts_of_a_split_are_tracked_separately():
    """As in CvT: class token and patches are split, and the score only uses the former."""
    image = torch.randn(1, 4, 2, 3)
    with Dataflow(image) as flow:
        tokens = torch.cat([torch.ones(1, 1, 4), image.flatten(2).mT], dim=1).tanh()
        token, patches = tokens.split([1, 6], 1)
        score, other = token.sum(), patches.sum()
    assert flow.graph.reads(flow.value(score).node)[flow.value(tokens).node] == Reads.EXTRA
    assert flow.graph.reads(flow.value(other).node)[flow.value(tokens).node] == Reads.ALL
    assert flow.value(patches).axes[1] == Axis((Factor("H", 2, 1, even(2)), Factor("W", 3, 1, even(3))))
