"""The same methods in other libraries; each function returns {} if its library is not installed."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

Contenders = dict[str, Callable[[], object]]
"""One call of the method by name."""


def installed(name: str) -> bool:
    """Return whether a library can be imported."""
    return importlib.util.find_spec(name) is not None


def grad_cams(model: nn.Module, x: Tensor, class_: int, layers: Sequence[str]) -> Contenders:
    """Grad-CAM at one layer, or at several, by all three libraries, each with a copy of the model."""
    contenders: Contenders = {}
    if installed("captum"):
        from captum.attr import LayerGradCam

        own = copy.deepcopy(model)
        cams = [LayerGradCam(own, own.get_submodule(layer)) for layer in layers]
        contenders["captum"] = lambda: [cam.attribute(x, class_).detach() for cam in cams]
    if installed("pytorch_grad_cam"):
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        other = copy.deepcopy(model)
        cam = GradCAM(other, [other.get_submodule(layer) for layer in layers])
        contenders["grad-cam"] = lambda: cam(x, [ClassifierOutputTarget(class_)])
    if installed("torchcam"):
        from torchcam.methods import GradCAM as TorchCam

        third = copy.deepcopy(model)

        def torchcam() -> object:
            with TorchCam(third, list(layers)) as extractor:
                return extractor(class_, third(x), normalized=False)

        contenders["torchcam"] = torchcam
    return contenders


def ablation(model: nn.Module, x: Tensor, class_: int, layer: str) -> Contenders:
    """Ablation-CAM by grad-cam, which runs the whole network for every chunk of channels."""
    if not installed("pytorch_grad_cam"):
        return {}
    from pytorch_grad_cam import AblationCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    own = copy.deepcopy(model)
    cam = AblationCAM(own, [own.get_submodule(layer)])
    cam.batch_size = 32
    return {"grad-cam": lambda: cam(x, [ClassifierOutputTarget(class_)])}


def saliency(model: nn.Module, x: Tensor, class_: int) -> Contenders:
    """The input gradient by captum and zennit."""
    contenders: Contenders = {}
    if installed("captum"):
        from captum.attr import Saliency

        method = Saliency(copy.deepcopy(model))
        contenders["captum"] = lambda: method.attribute(x.clone(), class_, abs=False)
    return contenders | _zennit("Gradient", model, x, class_)


def _zennit(attributor: str, model: nn.Module, x: Tensor, class_: int, **options: object) -> Contenders:
    """A method of zennit by the name of its attributor; guided backpropagation is `Gradient` with a composite."""
    if not installed("zennit"):
        return {}
    import zennit.attribution

    def of_class(output: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor([class_]), output.shape[1]).to(output)

    own = copy.deepcopy(model)

    def zennit_() -> object:
        with getattr(zennit.attribution, attributor)(own, attr_output=of_class, **options) as method:
            return method(x.clone())[1]

    return {"zennit": zennit_}


def integrated_gradients(model: nn.Module, x: Tensor, class_: int, steps: int) -> Contenders:
    """Integrated gradients by captum: all points in one batch (its default), in chunks of 16 and 8, and one by one."""
    if not installed("captum"):
        return {}
    from captum.attr import IntegratedGradients

    method = IntegratedGradients(copy.deepcopy(model))

    def attribute(chunk: int | None) -> object:
        return method.attribute(x, target=class_, n_steps=steps, method="gausslegendre", internal_batch_size=chunk)

    return {
        "captum": lambda: attribute(None),
        "captum, chunks of 16": lambda: attribute(16),
        "captum, chunks of 8": lambda: attribute(8),
        "captum, one by one": lambda: attribute(1),
    }


def gradient_shap(model: nn.Module, x: Tensor, class_: int, samples: int) -> Contenders:
    """Gradient SHAP by captum, all samples in one batch."""
    if not installed("captum"):
        return {}
    from captum.attr import GradientShap

    method, baselines = GradientShap(copy.deepcopy(model)), torch.rand(samples, *x.shape[1:])
    return {"captum": lambda: method.attribute(x.clone(), baselines, n_samples=samples, target=class_)}


def score_cams(model: nn.Module, x: Tensor, class_: int, layer: str) -> Contenders:
    """Score-CAM by grad-cam and torchcam, at their default batch sizes."""
    contenders: Contenders = {}
    if installed("pytorch_grad_cam"):
        from pytorch_grad_cam import ScoreCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        own = copy.deepcopy(model)
        cam = ScoreCAM(own, [own.get_submodule(layer)])
        contenders["grad-cam"] = lambda: cam(x, [ClassifierOutputTarget(class_)])
    if installed("torchcam"):
        from torchcam.methods import ScoreCAM as TorchCam

        other = copy.deepcopy(model)

        def torchcam() -> object:
            with TorchCam(other, layer, input_shape=tuple(x.shape[1:])) as extractor, torch.no_grad():
                return extractor(class_, other(x), normalized=False)

        contenders["torchcam"] = torchcam
    return contenders


def smooth_grad(model: nn.Module, x: Tensor, class_: int, samples: int) -> Contenders:
    """SmoothGrad by captum's NoiseTunnel: all samples in one batch (its default), and in chunks of 8."""
    if not installed("captum"):
        return {}
    from captum.attr import NoiseTunnel, Saliency

    method = NoiseTunnel(Saliency(copy.deepcopy(model)))
    sigma = 0.15 * float(x.max() - x.min())

    def attribute(chunk: int | None) -> object:
        return method.attribute(
            x.clone(), target=class_, nt_samples=samples, nt_samples_batch_size=chunk, stdevs=sigma, abs=False
        )

    return {"captum": lambda: attribute(None), "captum, chunks of 8": lambda: attribute(8)}


def guided_backprop(model: nn.Module, x: Tensor, class_: int) -> Contenders:
    """Guided backpropagation by captum, grad-cam and zennit, of which none applies the rule to ReLU6."""
    contenders: Contenders = {}
    if installed("captum"):
        from captum.attr import GuidedBackprop

        method = GuidedBackprop(copy.deepcopy(model))
        contenders["captum"] = lambda: method.attribute(x.clone(), class_)
    if installed("pytorch_grad_cam"):
        from pytorch_grad_cam import GuidedBackpropReLUModel

        other = GuidedBackpropReLUModel(copy.deepcopy(model), device="cpu")
        contenders["grad-cam"] = lambda: other(x.clone(), target_category=class_)
    if installed("zennit"):
        from zennit.composites import GuidedBackprop as ZennitGuidedBackprop

        contenders |= _zennit("Gradient", model, x, class_, composite=ZennitGuidedBackprop())
    return contenders


def occlusion(model: nn.Module, x: Tensor, class_: int, window: int, stride: int) -> Contenders:
    """Occlusion by captum, one window per forward pass (its default) and 16."""
    if not installed("captum"):
        return {}
    from captum.attr import Occlusion

    method = Occlusion(copy.deepcopy(model))
    channels = x.shape[1]

    def attribute(at_once: int) -> object:
        return method.attribute(
            x, (channels, window, window), strides=(channels, stride, stride), target=class_, baselines=0,
            perturbations_per_eval=at_once,
        )  # fmt: skip

    return {"captum": lambda: attribute(1), "captum, 16 at once": lambda: attribute(16)}


def masks(model: nn.Module, x: Tensor, class_: int, samples: int) -> Contenders:
    """RISE as a plain loop over masks in batches of 16, since no other library has it for images."""
    own = copy.deepcopy(model)

    def loop() -> object:
        total = torch.zeros(x.shape[2:])
        with torch.inference_mode():
            for start in range(0, samples, 16):
                rows = min(16, samples - start)
                cells = (torch.rand(rows, 1, 8, 8) < 0.5).float()
                shown = torch.nn.functional.interpolate(cells, x.shape[2:], mode="bilinear")
                total += (own(x * shown)[:, class_, None, None] * shown[:, 0]).sum(0)
        return total

    return {"a plain loop, 16 at once": loop}


def curves(model: nn.Module, x: Tensor, class_: int, heat: Tensor, steps: int) -> Contenders:
    """Deletion and insertion by torchcam of precomputed maps, which a minimal extractor returns."""
    if not installed("torchcam"):
        return {}
    from torchcam.metrics import DeletionInsertionMetric

    class Given:
        model: nn.Module

        def __call__(self, *args: object, **kwargs: object) -> list[Tensor]:
            return [heat]

        def fuse_cams(self, cams: list[Tensor]) -> Tensor:
            return cams[0]

        def _hooks_off(self) -> AbstractContextManager[None]:
            return nullcontext()

    given = Given()
    given.model = copy.deepcopy(model)

    def torchcam() -> object:
        metric = DeletionInsertionMetric(given, lambda logits: logits.softmax(-1), steps=steps)
        metric.update(x, [class_] * len(x))
        return metric.summary()

    return {"torchcam": torchcam}


def road(model: nn.Module, x: Tensor, class_: int, heat: Tensor, percentiles: Sequence[int]) -> Contenders:
    """ROAD by grad-cam: the highest pixels removed, and both orders."""
    if not installed("pytorch_grad_cam"):
        return {}
    from pytorch_grad_cam.metrics.road import ROADCombined, ROADMostRelevantFirstAverage
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget

    own, targets, maps = copy.deepcopy(model), [ClassifierOutputSoftmaxTarget(class_)] * len(x), heat.numpy()
    highest, both = ROADMostRelevantFirstAverage(list(percentiles)), ROADCombined(list(percentiles))
    return {
        "grad-cam, only highest first": lambda: highest(x, maps, targets, own),
        "grad-cam": lambda: both(x, maps, targets, own),
    }
