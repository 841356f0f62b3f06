"""The peers' calls for the same results; each function gives {} where its library is not installed."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence

from torch import Tensor, nn

Contenders = dict[str, Callable[[], object]]


def installed(name: str) -> bool:
    """Whether a library can be imported."""
    return importlib.util.find_spec(name) is not None


def grad_cams(model: nn.Module, x: Tensor, class_: int, layers: Sequence[str]) -> Contenders:
    """Grad-CAM at one layer, or at several, by all three peers; each on its own copy of the model."""
    found: Contenders = {}
    if installed("captum"):
        from captum.attr import LayerGradCam

        own = copy.deepcopy(model)
        cams = [LayerGradCam(own, own.get_submodule(layer)) for layer in layers]
        found["captum"] = lambda: [cam.attribute(x, class_).detach() for cam in cams]
    if installed("pytorch_grad_cam"):
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        other = copy.deepcopy(model)
        cam = GradCAM(other, [other.get_submodule(layer) for layer in layers])
        found["grad-cam"] = lambda: cam(x, [ClassifierOutputTarget(class_)])
    if installed("torchcam"):
        from torchcam.methods import GradCAM as TorchCam

        third = copy.deepcopy(model)

        def torchcam() -> object:
            with TorchCam(third, list(layers)) as extractor:
                return extractor(class_, third(x), normalized=False)

        found["torchcam"] = torchcam
    return found


def ablation(model: nn.Module, x: Tensor, class_: int, layer: str) -> Contenders:
    """Ablation-CAM by grad-cam, which runs the whole network again for every chunk of channels."""
    if not installed("pytorch_grad_cam"):
        return {}
    from pytorch_grad_cam import AblationCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    own = copy.deepcopy(model)
    cam = AblationCAM(own, [own.get_submodule(layer)])
    cam.batch_size = 32
    return {"grad-cam": lambda: cam(x, [ClassifierOutputTarget(class_)])}


def saliency(model: nn.Module, x: Tensor, class_: int) -> Contenders:
    """The input gradient by captum."""
    if not installed("captum"):
        return {}
    from captum.attr import Saliency

    method = Saliency(copy.deepcopy(model))
    return {"captum": lambda: method.attribute(x.clone(), class_, abs=False)}


def integrated_gradients(model: nn.Module, x: Tensor, class_: int, steps: int) -> Contenders:
    """Integrated gradients by captum: all points at once (its default), and in chunks of 16."""
    if not installed("captum"):
        return {}
    from captum.attr import IntegratedGradients

    method = IntegratedGradients(copy.deepcopy(model))

    def attribute(chunk: int | None) -> object:
        return method.attribute(x, target=class_, n_steps=steps, method="gausslegendre", internal_batch_size=chunk)

    return {"captum": lambda: attribute(None), "captum, chunks of 16": lambda: attribute(16)}


def smooth_grad(model: nn.Module, x: Tensor, class_: int, samples: int) -> Contenders:
    """SmoothGrad by captum's NoiseTunnel: all samples at once (its default)."""
    if not installed("captum"):
        return {}
    from captum.attr import NoiseTunnel, Saliency

    method = NoiseTunnel(Saliency(copy.deepcopy(model)))
    sigma = 0.15 * float(x.max() - x.min())
    return {"captum": lambda: method.attribute(x.clone(), target=class_, nt_samples=samples, stdevs=sigma, abs=False)}


def guided_backprop(model: nn.Module, x: Tensor, class_: int) -> Contenders:
    """Guided backpropagation by captum and grad-cam."""
    found: Contenders = {}
    if installed("captum"):
        from captum.attr import GuidedBackprop

        method = GuidedBackprop(copy.deepcopy(model))
        found["captum"] = lambda: method.attribute(x.clone(), class_)
    if installed("pytorch_grad_cam"):
        from pytorch_grad_cam import GuidedBackpropReLUModel

        other = GuidedBackpropReLUModel(copy.deepcopy(model), device="cpu")
        found["grad-cam"] = lambda: other(x.clone(), target_category=class_)
    return found


def occlusion(model: nn.Module, x: Tensor, class_: int, window: int, stride: int) -> Contenders:
    """Occlusion by captum, one window a forward (its default) and 16 at once."""
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
