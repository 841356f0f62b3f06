"""All methods; importing this package fills `registry.METHODS`, in this order."""

from .gradient_cams import grad_cam, grad_cam_pp, grad_cam_sweep, hires_cam, layer_cam, xgrad_cam  # isort: skip
from .score_cams import ablation_cam  # isort: skip
from .features import channel_effects, feature_maps  # isort: skip
from .gradients import input_x_gradient, saliency, smooth_grad  # isort: skip
from .path_integrals import integrated_gradients  # isort: skip
from .modified_backprop import deconvnet, guided_backprop  # isort: skip
from .combined import guided_grad_cam  # isort: skip
from .masks import occlusion  # isort: skip

__all__ = [
    "ablation_cam",
    "channel_effects",
    "deconvnet",
    "feature_maps",
    "grad_cam",
    "grad_cam_pp",
    "grad_cam_sweep",
    "guided_backprop",
    "guided_grad_cam",
    "hires_cam",
    "input_x_gradient",
    "integrated_gradients",
    "layer_cam",
    "occlusion",
    "saliency",
    "smooth_grad",
    "xgrad_cam",
]
