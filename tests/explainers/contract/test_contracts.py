"""The contracts of the library, each for every method of `METHODS`; a new method is covered automatically."""

from __future__ import annotations

import gc
import inspect
import weakref

import pytest
import torch
from torch import nn

import explainers
from explainers import (
    METHODS,
    BadImages,
    BadOption,
    BadTarget,
    ExplainerError,
    LayerNotFound,
    NoSpatialOutput,
    UnsupportedOperation,
    explain,
)
from tests.support.calls import (
    CLASSY,
    LONG,
    MAPS,
    NAMES,
    OF_INPUTS,
    OF_LAYERS,
    STOCHASTIC,
    UNOFFERED,
    call,
    shape,
    small,
)
from tests.support.nets import Residual, plain, random_images, residual, settle, top
from tests.support.traces import Marker, graphs_alive, nothing_left, tensors_alive

pytestmark = pytest.mark.sample

each = pytest.mark.parametrize("name", NAMES)
each_of_layers = pytest.mark.parametrize("name", OF_LAYERS)
each_of_inputs = pytest.mark.parametrize("name", OF_INPUTS)
each_classy = pytest.mark.parametrize("name", CLASSY)
each_map = pytest.mark.parametrize("name", MAPS)
each_long = pytest.mark.parametrize("name", LONG)

LAST = (3, 6, 6, 8)


def close(actual, expected, rtol=1e-9, atol=1e-11):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, check_dtype=False)


# The result


@each
def test_shape_dtype_and_detachment(name):
    images = random_images()

    result = call(name, residual(), images)

    assert tuple(result.shape) == shape(name, images, LAST)
    assert result.dtype == torch.float64 and result.device == images.device
    assert not result.requires_grad and result.grad_fn is None and not result.is_inference()
    assert result.isfinite().all() and result.any()


@each
def test_result_shares_no_memory(name):
    """Writing into a result reaches neither the model, nor the images, nor the next result."""
    net, images = residual(), random_images()
    first = call(name, net, images)
    kept = first.clone()
    with nothing_left(net, images):
        first.fill_(7)
        second = call(name, net, images)
    assert torch.equal(second, kept)


@each
def test_calling_twice_is_bit_identical(name):
    net, images = residual(), random_images()
    assert torch.equal(call(name, net, images), call(name, net, images))


# Contract 1: a batch equals its images one by one


@each
def test_batch_equals_one_by_one(name):
    net, images, classes = residual(), random_images(), [2, 0, 5]
    batch = call(name, net, images, classes)
    single = torch.cat([call(name, net, images[i : i + 1], classes[i : i + 1]) for i in range(3)])
    close(batch, single)
    order = [2, 0, 1]
    close(call(name, net, images[order], [classes[i] for i in order]), batch[order])


@each_classy
def test_target_none_is_the_top_class_of_each_image(name):
    net, images = residual(), random_images(8)
    classes = top(net, images)
    assert len(set(classes)) > 1, "the images must have different top classes"
    close(call(name, net, images), call(name, net, images, classes))


@each_classy
def test_every_form_of_target_means_the_same(name):
    net, images = residual(), random_images()
    signed = {"relu": False} if "relu" in METHODS[name].options else {}
    if name == "extremal_perturbation":
        signed = {"steps": 20}  # after 8 steps, the masks of two classes are still equal
    expected = call(name, net, images, [4, 4, 4], **signed)
    forms = [
        4,
        (4, 4, 4),
        torch.tensor([4, 4, 4]),
        explainers.Logit(4),
        explainers.Logit([4, 4, 4]),
        lambda scores: scores[:, 4],
    ]
    for form in forms:
        close(call(name, net, images, form, **signed), expected)
    assert not torch.allclose(call(name, net, images, [4, 3, 4], **signed), expected), "the class must matter"


# Contract 2: no side effects


@each
def test_normal_use_has_no_side_effects(name):
    net, images = residual(), random_images()
    with nothing_left(net, images):
        call(name, net, images)


@each
@pytest.mark.parametrize("target", [5000, [1], [0, 1, 2, 3], -1])
def test_wrong_target_has_no_side_effects(name, target):
    net, images = residual(), random_images()
    with nothing_left(net, images):
        try:
            call(name, net, images, target)
        except (ValueError, TypeError):
            pass
        else:
            assert name not in CLASSY, "a wrong target must be refused"


@each
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_failing_module_has_no_side_effects(name, error, after):
    """The module fails in the first, a middle or a late forward of the call; the error reaches the caller unchanged."""
    net, images = residual(), random_images()
    net.fuse.light(error, after)
    with nothing_left(net, images):
        try:
            call(name, net, images)
        except type(error) as raised:
            assert raised is error
        else:
            calls = net.fuse.state.calls
            assert calls <= after, f"call {calls} of the module raised, but the error did not reach the caller"
    net.fuse.dampen()


@each
def test_prediction_and_gradient_are_bit_identical_after_a_failure(name):
    net, images = residual(), random_images()

    def ordinary():
        x = images.clone().requires_grad_()
        scores = net(x)
        return scores.detach(), torch.autograd.grad(scores[:, 1].sum(), x)[0]

    before = ordinary()
    net.fuse.light(RuntimeError("lit"), 0)
    try:
        call(name, net, images)
    except RuntimeError:
        pass
    net.fuse.dampen()
    call(name, net, images)
    after = ordinary()
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])


@each
def test_failing_backward_has_no_side_effects(name):
    class Trap(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("backward failed")

    class Trapped(nn.Module):
        def forward(self, x):
            return Trap.apply(x)

    net, images = residual(), random_images()
    net.avgpool = nn.Sequential(Trapped(), net.avgpool)
    with nothing_left(net, images):
        try:
            call(name, net, images)
        except (RuntimeError, ExplainerError):
            pass


@each
@pytest.mark.usefixtures("frozen")
def test_no_graph_or_tensor_is_kept_alive(name):
    net, images = residual(), random_images()
    call(name, net, images)  # a filled cache is allowed, growth is not
    marked = residual()
    marked.pause2 = Marker()
    try:
        call(name, marked, images)
        net = marked
    except UnsupportedOperation:
        assert METHODS[name].family == "backward rule", "only rules for operations refuse one that they do not know"
    call(name, net, images)
    before = tensors_alive()
    result = call(name, net, images)
    assert tensors_alive() == before + 1
    assert graphs_alive() == 0
    del result


@each
@pytest.mark.usefixtures("frozen")
def test_the_model_can_be_freed(name):
    net = residual()
    call(name, net, random_images())
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


@each
@pytest.mark.parametrize("mode", ["train", "mixed"])
def test_a_model_in_train_mode_is_explained_in_eval_mode_and_stays_in_train(name, mode):
    """Batch norm and dropout act as in eval mode; running statistics and each module's mode are unchanged."""
    net, images = residual(), random_images()
    net.pause1 = nn.Dropout(0.5).eval()
    expected = call(name, net, images)
    if mode == "train":
        net.train()
    else:
        net.layer1.train()
    with nothing_left(net, images):
        actual = call(name, net, images)
    close(actual, expected)


# Contract 4: grad modes, dtypes, strides


@each
def test_under_no_grad_and_inference_mode(name):
    net, images = residual(), random_images()
    expected = call(name, net, images)
    with torch.no_grad(), nothing_left(net, images):
        close(call(name, net, images), expected)
    with torch.inference_mode(), nothing_left(net, images):
        close(call(name, net, images), expected)
    with torch.inference_mode():
        born = random_images()
    result = call(name, net, born)
    close(result, expected)
    assert not result.is_inference()


@each
def test_frozen_parameters(name):
    net, images = residual(), random_images()
    expected = call(name, net, images)
    net.requires_grad_(False)
    with nothing_left(net, images):
        close(call(name, net, images), expected)


@each
def test_images_that_require_grad_and_carry_one(name):
    net, images = residual(), random_images()
    expected = call(name, net, images)
    images.requires_grad_()
    images.grad = torch.full_like(images, 7)
    with nothing_left(net, images):
        close(call(name, net, images), expected)
    with nothing_left(net, images):
        close(call(name, net, images * 1), expected)


@each
def test_float32_keeps_float32(name):
    net, images = residual(), random_images()
    expected = call(name, net, images, [2, 0, 5], **({"seed": 3} if name in STOCHASTIC else {}))
    result = call(name, net.float(), images.float(), [2, 0, 5], **({"seed": 3} if name in STOCHASTIC else {}))
    assert result.dtype == torch.float32
    if name not in STOCHASTIC:  # random draws differ between dtypes
        close(result.double(), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_gives_float32(name, dtype):
    net, images = plain(), random_images()
    layer = {"layer": "relu2"} if name in OF_LAYERS else {}
    half = call(name, net.to(dtype), images.to(dtype), [2, 0, 5], **layer)
    assert half.dtype == torch.float32 and half.isfinite().all()
    if name not in STOCHASTIC:
        # The same rounded weights and images in float32: what remains is the arithmetic error of the dtype.
        full = call(name, net.float(), images.to(dtype).float(), [2, 0, 5], **layer)
        cosine = torch.nn.functional.cosine_similarity(half.flatten(), full.flatten(), dim=0)
        assert cosine > (0.97 if dtype == torch.bfloat16 else 0.995)


@each
def test_channels_last(name):
    net, images = residual(), random_images()
    expected = call(name, net, images)
    net.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)
    with nothing_left(net, images):
        close(call(name, net, images), expected)
    assert images.is_contiguous(memory_format=torch.channels_last)


@each
def test_images_of_any_strides(name):
    net, images = residual(), random_images()
    expected = call(name, net, images)
    close(call(name, net, images.transpose(2, 3).contiguous().transpose(2, 3)), expected)
    one = images[:1].expand(3, -1, -1, -1)
    close(call(name, net, one, 1), call(name, net, one.clone(), 1))


@each
@pytest.mark.parametrize("channels", [1, 6])
def test_any_number_of_channels(name, channels):
    images = random_images(2, channels)
    result = call(name, residual(channels), images)
    assert tuple(result.shape) == shape(name, images, (2, *LAST[1:]))


@each
def test_height_and_width_are_not_swapped(name):
    """A tall image and a wide one: the axes are not confused."""
    for height, width in ((8, 24), (24, 8)):
        images = random_images(2, 3, height, width)
        result = call(name, residual(), images)
        assert tuple(result.shape) == shape(name, images, (2, 6, height // 2, width // 2))


# Contract 5: randomness


def stochastic_options(name):
    """Options under which random draws matter: a baseline of noise, a layer with a nonlinear suffix."""
    drawn = {"baseline": "noise"} if "baseline" in METHODS[name].options else {}
    return drawn | ({"layer": "layer1"} if METHODS[name].takes_layer else {})


@pytest.mark.parametrize("name", STOCHASTIC)
def test_result_only_depends_on_the_seed(name):
    net, images, drawn = residual(), random_images(), stochastic_options(name)
    torch.manual_seed(1)
    with nothing_left(net, images):
        first = call(name, net, images, 2, seed=5, **drawn)
    torch.manual_seed(2)
    assert torch.equal(call(name, net, images, 2, seed=5, **drawn), first)
    assert not torch.allclose(call(name, net, images, 2, seed=6, **drawn), first)
    assert torch.equal(call(name, net, images, 2, **drawn), call(name, net, images, 2, seed=0, **drawn)), (
        "default seed 0"
    )


@pytest.mark.parametrize("name", STOCHASTIC)
def test_random_samples_depend_on_neither_batch_nor_chunk_size(name):
    """An image's random draws depend neither on the rest of the batch nor on the chunk size."""
    net, images, drawn = residual(), random_images(), stochastic_options(name)
    batch = call(name, net, images, [2, 0, 5], **drawn)
    close(batch[1:2], call(name, net, images[1:2], 0, **drawn))
    if METHODS[name].long:
        close(batch, call(name, net, images, [2, 0, 5], batch_size=3, **drawn))
    twice = call(name, net, images[:1].repeat(2, 1, 1, 1), 2, **drawn)
    close(twice[0], twice[1])


# Contract 6: long methods


@each_long
def test_batch_size_changes_nothing(name):
    net, images = residual(), random_images()
    expected = call(name, net, images, [2, 0, 5])
    for size in (1, 2, 7, 1000):
        close(call(name, net, images, [2, 0, 5], batch_size=size), expected)


@each_long
def test_progress_rises_to_one_and_carries_the_map(name):
    seen = []
    net, images = residual(), random_images(1)
    result = call(name, net, images, 2, batch_size=2, progress=lambda partial: seen.append(partial))
    fractions = [partial.fraction for partial in seen]
    assert len(seen) > 1 and fractions == sorted(fractions) and fractions[-1] == 1 and fractions[0] > 0
    assert all(0 < partial.done <= partial.total for partial in seen)
    shown = [partial.map for partial in seen if partial.map is not None]
    assert shown, "the map so far is shown"
    assert all(each.shape == shown[-1].shape and not each.requires_grad for each in shown)
    if METHODS[name].returns in ("pixels", "features"):
        result = explain(name, net, images, 2, **small(name)).map
    close(shown[-1].double().reshape(-1), result.reshape(-1))


@each_long
def test_progress_returning_false_stops_with_the_map_so_far(name):
    net, images = residual(), random_images(1)
    count = []

    def stop(partial):
        count.append(partial.done)
        return len(count) < 2

    with nothing_left(net, images):
        result = call(name, net, images, 2, batch_size=1, progress=stop)
    assert len(count) == 2
    assert tuple(result.shape) == shape(name, images, (1, *LAST[1:])) and result.isfinite().all()


@each_long
def test_progress_that_raises_has_no_side_effects(name):
    net, images = residual(), random_images(1)

    def fail(partial):
        raise ZeroDivisionError("from the caller")

    with nothing_left(net, images), pytest.raises(ZeroDivisionError):
        call(name, net, images, 2, batch_size=1, progress=fail)


@each_long
def test_budget_ends_within_one_batch(name):
    """4 ms sleeps make each forward at least 8 ms; a budget of 1 ms must end after the first or second batch."""
    net = residual(seconds=0.004)
    images, seen = random_images(1), []
    result = call(
        name, net, images, 2, batch_size=1, budget=0.001, progress=lambda partial: seen.append(partial.fraction)
    )
    assert len(seen) <= 2 and seen[-1] < 1
    assert tuple(result.shape) == shape(name, images, (1, *LAST[1:]))


# Contract 7: wrong use is refused before any forward pass


class Counting(nn.Module):
    """Wraps a network and counts its forwards."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.count = [0]

    def forward(self, x):
        self.count[0] += 1
        return self.net(x)


def refusal(error, name, net, images, target=None, **options):
    with pytest.raises(error) as raised:
        METHODS[name](net, images, target, **(small(name) | options))
    assert isinstance(raised.value, (ValueError, TypeError))
    return str(raised.value)


@each
@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: (x * 100).to(torch.uint8),
        lambda x: x.long(),
        lambda x: x[0],
        lambda x: x[:, None],
        lambda x: torch.where(x == x.amax((1, 2, 3), keepdim=True), float("nan"), x),
        lambda x: torch.where(x == x.amax((1, 2, 3), keepdim=True), float("inf"), x),
        lambda x: x[:0],
        lambda x: x.numpy(),
    ],
    ids=["uint8", "int64", "3-d", "5-d", "nan", "inf", "empty", "numpy"],
)
def test_wrong_images_are_refused(name, spoil):
    net = Counting(residual())
    images = spoil(random_images())
    message = refusal((BadImages, TypeError), name, net, images)
    is_video = images.ndim == 5  # only a pass of the network shows whether it takes videos
    assert len(message) > 20 and (is_video or net.count == [0]), "refused before any work"


@each_classy
@pytest.mark.parametrize(
    ("target", "word"),
    [(7, "7"), (5000, "5000"), (-1, "-1"), (True, "True"), ([0, 1], "2"), ([0, 1, 2, 3], "4"), ("cat", "cat")],
)
def test_wrong_targets_are_refused(name, target, word):
    message = refusal((BadTarget, TypeError), name, residual(), random_images(), target)
    assert word in message, "the refusal names what was given"


@each_classy
@pytest.mark.parametrize("target", [lambda s: s, lambda s: s.sum(), lambda s: 3.0, lambda s: s[:1, 0]])
def test_a_callable_target_must_return_one_score_per_image(name, target):
    refusal((BadTarget, TypeError), name, residual(), random_images(), target)


@each_of_layers
def test_unknown_layer_is_refused_with_the_nearest_name(name):
    message = refusal(LayerNotFound, name, residual(), random_images(), layer="layre2")
    assert "layre2" in message and "'layer2'" in message


@each_of_layers
def test_layer_without_a_grid_is_refused(name):
    if METHODS[name].returns == "channels":
        pytest.skip("effects need no grid")
    message = refusal(NoSpatialOutput, name, residual(), random_images(), layer="fc")
    assert "fc" in message


@each_of_layers
def test_foreign_module_as_layer_is_refused(name):
    refusal(LayerNotFound, name, residual(), random_images(), layer=nn.ReLU())
    refusal((TypeError, ExplainerError), name, residual(), random_images(), layer=3)


@each_of_layers
def test_module_as_layer_equals_its_name(name):
    net, images = residual(), random_images()
    module, name_of_it = (net.layer2, "layer2") if name == "cam" else (net.layer1, "layer1")  # CAM needs the last one
    close(call(name, net, images, 1, layer=module), call(name, net, images, 1, layer=name_of_it))


@each_of_inputs
def test_input_methods_refuse_a_layer(name):
    refusal((TypeError, BadOption), name, residual(), random_images(), layer="layer1")


@each
def test_unknown_keyword_is_refused(name):
    message = refusal((TypeError, BadOption), name, residual(), random_images(), sampels=3)
    assert "sampels" in message


@each
def test_options_outside_their_range_are_refused(name):
    for option in METHODS[name].options.values():
        wrong = {
            "int": [option.low - 1 if option.low is not None else "x", 1.5, "many"],
            "float": [option.low - 1 if option.low is not None else "x", float("nan"), "much"],
            "bool": ["yes", 2],
            "choice": ["no such choice"],
        }.get(option.kind, [])
        for value in wrong:
            message = refusal((BadOption, TypeError), name, residual(), random_images(), **{option.name: value})
            assert option.name in message


@each_classy
def test_scores_that_are_not_a_matrix_need_a_callable_target(name):
    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = plain()[:4]

        def forward(self, x):
            return self.net(x)

    net, images = Dense().eval(), random_images()
    refusal((BadTarget, TypeError), name, net, images, 1)
    layer = {"layer": "net.conv2"} if name in OF_LAYERS else {}
    if name in ("cam", "finer_cam"):  # their formulas need class scores
        refusal(ExplainerError, name, net, images, lambda scores: scores[:, 2].mean((1, 2)), **layer)
        return
    result = call(name, net, images, lambda scores: scores[:, 2].mean((1, 2)), **layer)
    assert result.isfinite().all()


@each
def test_model_that_is_not_a_module_is_refused(name):
    refusal(TypeError, name, lambda x: x.mean((2, 3)), random_images())


# The registry


@each
def test_registry_entry_is_complete(name):
    method = METHODS[name]
    assert method.name == name and callable(method) and method.title and method.summary
    assert method.returns in ("grid", "pixels", "heat", "channels", "features")
    assert method.family and isinstance(method.paper, str)
    assert getattr(explainers, name) is not None and name in explainers.__all__
    for key, option in method.options.items():
        assert option.name == key and option.kind in ("int", "float", "bool", "choice", "text")
        option.check(option.default) if option.default is not None else None
    text = inspect.getdoc(getattr(explainers, name)) or ""
    assert "Returns" in text and "Source" in text and "Errors" in text


ORDER = """
    grad_cam grad_cam_pp hires_cam element_wise_grad_cam layer_cam xgrad_cam smooth_grad_cam_pp shapley_cam
    finer_cam cam eigen_cam eigen_grad_cam seg_eigen_cam kpca_cam fem deep_feature_factorization ablation_cam
    score_cam ss_cam is_cam feature_maps token_pca attention_heads channel_effects saliency input_x_gradient
    smooth_grad smooth_grad_squared var_grad integrated_gradients blur_integrated_gradients gradient_shap
    guided_integrated_gradients forgrad layer_integrated_gradients internal_influence layer_conductance xrai
    guided_backprop deconvnet excitation_backprop deep_lift deep_lift_shap lrp guided_grad_cam refine_cam sess
    full_grad occlusion feature_ablation rise d_rise mc_rise extremal_perturbation lime kernel_shap shapley_sampling
    sobol hsic random_control edge_control center_control attention_rollout transformer_attribution le_grad
""".split()


def test_registry_order_is_fixed():
    """A new method may be inserted anywhere; the existing ones keep their order, which page and tables show."""
    assert [name for name in METHODS if name in ORDER] == ORDER


@each
def test_direct_call_equals_the_registry_call(name):
    net, images = residual(), random_images()
    assert torch.equal(
        getattr(explainers, name)(net, images, 1, **small(name)), METHODS[name](net, images, 1, **small(name))
    )


@each
def test_applies_gives_the_reason(name):
    net, images = residual(), random_images()
    assert name in UNOFFERED or METHODS[name].applies(net) is None
    scripted = torch.jit.trace(net, images)
    reason = METHODS[name].applies(scripted)
    if name in OF_LAYERS:
        assert isinstance(reason, str) and "traced" in reason


# `signed` methods


@each_map
def test_signed_methods_have_both_signs(name):
    """`signed` describes the default call: a final ReLU leaves one sign."""
    result = call(name, residual(), random_images(8))
    assert bool((result < 0).any()) == METHODS[name].signed


# Units


@each_classy
def test_values_are_in_the_targets_units(name):
    """Row P19: ten times the head's weights give ten times the map (a hundred times for a product of two)."""
    net, images = residual(), random_images()
    first = call(name, net, images, 2)
    net.fc.weight.data *= 10
    net.fc.bias.data *= 10
    second = call(name, net, images, 2)
    if METHODS[name].scale_free:
        assert second.isfinite().all(), METHODS[name].scale_free
    elif name in ("grad_cam_pp", "smooth_grad_cam_pp", "shapley_cam", "sess"):
        assert second.max() > 2 * first.max(), "never scaled to a fixed range"
    else:
        squares = ("guided_grad_cam", "smooth_grad_squared", "var_grad")
        close(second, first * (100 if name in squares else 10), rtol=1e-8)


def test_plain_net_of_floats_in_double_default():
    """The default dtype does not affect the result."""
    net, images = residual(), random_images()
    expected = explainers.smooth_grad(net, images, 1, samples=3)
    torch.set_default_dtype(torch.float64)
    try:
        close(explainers.smooth_grad(net, images, 1, samples=3), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_residual_has_the_expected_layers():
    net = settle(Residual().double())
    assert tuple(net.layer2(net.maxpool(net.layer1(net.conv1(random_images())))).shape) == LAST
