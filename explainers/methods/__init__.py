"""All methods; importing this package fills `registry.METHODS`, in this order."""

from ..registry import METHODS  # isort: skip
from .gradient_cams import grad_cam, grad_cam_pp, hires_cam, element_wise_grad_cam, layer_cam, xgrad_cam  # isort: skip
from .gradient_cams import finer_cam, shapley_cam, smooth_grad_cam_pp  # isort: skip
from .activation_cams import cam, eigen_cam, eigen_grad_cam, fem, kpca_cam, seg_eigen_cam  # isort: skip
from .activation_cams import Factors, deep_feature_factorization, feature_factors  # isort: skip
from .score_cams import ablation_cam, is_cam, score_cam, ss_cam  # isort: skip
from .sweeps import grad_cam_sweep, sweep  # isort: skip
from ..fusion import fuse  # isort: skip
from .features import attention_heads, channel_effects, feature_maps, token_pca  # isort: skip
from .gradients import input_x_gradient, saliency  # isort: skip
from .noisy_gradients import smooth_grad, smooth_grad_squared, var_grad  # isort: skip
from .path_integrals import blur_integrated_gradients, gradient_shap, integrated_gradients  # isort: skip
from .guided_paths import guided_integrated_gradients  # isort: skip
from .filtered_gradients import forgrad  # isort: skip
from .layer_paths import internal_influence, layer_conductance, layer_integrated_gradients  # isort: skip
from .regions import xrai  # isort: skip
from .modified_backprop import deconvnet, excitation_backprop, guided_backprop  # isort: skip
from .relevance import deep_lift, deep_lift_shap, lrp  # isort: skip
from .combined import guided_grad_cam, refine_cam, sess  # isort: skip
from .full_grad import FullGradients, full_grad, full_gradients  # isort: skip
from .masks import feature_ablation, occlusion  # isort: skip
from .random_masks import d_rise, mc_rise, rise  # isort: skip
from .extremal import extremal_perturbation  # isort: skip
from .surrogates import kernel_shap, lime, shapley_sampling  # isort: skip
from .sensitivity import hsic, sobol  # isort: skip
from .controls import centre_control, edge_control, random_control  # isort: skip
from .attention import attention_rollout, le_grad, transformer_attribution  # isort: skip

__all__ = [
    "Factors",
    "FullGradients",
    "ablation_cam",
    "attention_heads",
    "attention_rollout",
    "blur_integrated_gradients",
    "cam",
    "centre_control",
    "channel_effects",
    "d_rise",
    "deconvnet",
    "deep_feature_factorization",
    "deep_lift",
    "deep_lift_shap",
    "edge_control",
    "eigen_cam",
    "eigen_grad_cam",
    "element_wise_grad_cam",
    "excitation_backprop",
    "extremal_perturbation",
    "feature_ablation",
    "feature_factors",
    "feature_maps",
    "fem",
    "finer_cam",
    "forgrad",
    "full_grad",
    "full_gradients",
    "fuse",
    "grad_cam",
    "grad_cam_pp",
    "grad_cam_sweep",
    "gradient_shap",
    "guided_backprop",
    "guided_grad_cam",
    "guided_integrated_gradients",
    "hires_cam",
    "hsic",
    "input_x_gradient",
    "integrated_gradients",
    "internal_influence",
    "is_cam",
    "kernel_shap",
    "kpca_cam",
    "layer_cam",
    "layer_conductance",
    "layer_integrated_gradients",
    "le_grad",
    "lime",
    "lrp",
    "mc_rise",
    "occlusion",
    "random_control",
    "refine_cam",
    "rise",
    "saliency",
    "score_cam",
    "seg_eigen_cam",
    "sess",
    "shapley_cam",
    "shapley_sampling",
    "smooth_grad",
    "smooth_grad_cam_pp",
    "smooth_grad_squared",
    "sobol",
    "ss_cam",
    "sweep",
    "token_pca",
    "transformer_attribution",
    "var_grad",
    "xgrad_cam",
    "xrai",
]
# A method whose name is not above yet is exported all the same; the list itself is for type checkers.
__all__ += [name for name in METHODS if name not in __all__]
