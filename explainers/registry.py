"""The table of methods, and the decorator that registers a function in it and validates its calls."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

from torch import Tensor, nn

from explainers.call.method import Method, check_calls, check_keywords_of
from explainers.errors import BadOption, kind_of, nearest, shorten
from explainers.keywords import signature_of
from explainers.options import options_of
from explainers.perturbation.several_inputs import attribute_inputs

F = TypeVar("F", bound=Callable[..., Any])

_WITH_GRADIENTS = ("cam", "gradient", "backward rule", "attention")


MethodName = Literal[
    "grad_cam", "grad_cam_pp", "hires_cam", "element_wise_grad_cam", "layer_cam", "xgrad_cam", "smooth_grad_cam_pp",
    "shapley_cam", "finer_cam", "cam", "eigen_cam", "eigen_grad_cam", "seg_eigen_cam", "kpca_cam", "fem",
    "deep_feature_factorization", "ablation_cam", "score_cam", "ss_cam", "is_cam", "feature_maps", "token_pca",
    "attention_heads", "channel_effects", "saliency", "input_x_gradient", "smooth_grad", "smooth_grad_squared",
    "var_grad", "integrated_gradients", "blur_integrated_gradients", "gradient_shap", "guided_integrated_gradients",
    "forgrad", "layer_integrated_gradients", "internal_influence", "layer_conductance", "xrai", "guided_backprop",
    "deconvnet", "excitation_backprop", "deep_lift", "deep_lift_shap", "lrp", "attn_lrp", "cp_lrp", "guided_grad_cam",
    "refine_cam", "sess", "full_grad", "occlusion", "feature_ablation", "rise", "d_rise", "mc_rise",
    "extremal_perturbation", "vit_cx", "lime", "kernel_shap", "shapley_sampling", "sobol", "hsic", "rex",
    "random_control", "edge_control", "center_control", "attention_rollout", "transformer_attribution", "le_grad",
    "grad_eclip",
]  # fmt: skip
"""The names of all methods, so that editors complete them. Written by `python -m tests.project.test_docs`."""

MethodLike = MethodName | str | Method | Callable[..., Tensor]
"""A method: its name, its function, or its entry in `METHODS`."""


METHODS: dict[str, Method] = {}
"""Every method by name, in a fixed order."""


def method(
    *,
    family: str,
    returns: str,
    paper: str,
    title: str,
    signed: bool = True,
    reduce: str = "sum",
    unit: str = "logit",
    scale_free: str = "",
    reads_class: bool = True,
    gradients: bool | None = None,
    needs: Callable[[nn.Module], str | None] | None = None,
    caution: str = "",
    videos: bool = True,
) -> Callable[[F], F]:
    """Register a function in `METHODS` and validate its arguments before each call.

    `returns` is "grid", "pixels", "heat", "channels" or "features" (shapes in the package docstring); `reduce` is how
    `explain` reduces pixel attributions to one map; `unit` is the unit of the values; `scale_free` is a message for
    methods whose values are shares or ranks by definition and do not grow with the score; `reads_class` is False if the
    result does not depend on the target; `gradients` says whether the method uses gradients, if this differs from the
    default of its family; `needs` returns the reason why the method does not support a model, or None; `caution` is one
    sentence that warns users that the maps measured no better than those of a control, and recommends an alternative;
    `videos` says whether the method accepts videos and volumes [N, C, T, H, W].

    A function with an option `relu` returns the map before its final ReLU. The decorator applies the ReLU, also to
    partial maps.
    """

    def register(function: F) -> F:
        shown: Any = function
        shown.__signature__ = signature_of(function)
        parameters = shown.__signature__.parameters
        relu = parameters["relu"].default if "relu" in parameters else None
        declared = Method(
            name=function.__name__,
            title=title,
            family=family,
            returns=returns,
            paper=paper,
            summary=(inspect.getdoc(function) or "").partition("\n")[0],
            function=function,
            options=options_of(function),
            takes_layer="layer" in parameters,
            signed=signed and not relu,
            stochastic="seed" in parameters,
            long="progress" in parameters,
            relu=relu,
            reduce=reduce,
            unit="" if scale_free else unit,
            scale_free=scale_free,
            reads_class=reads_class,
            gradients=family in _WITH_GRADIENTS if gradients is None else gradients,
            needs=needs,
            caution=caution,
            videos=videos,
        )
        validated = check_calls(declared, attribute_inputs)
        METHODS[declared.name] = replace(declared, function=validated)
        return cast(F, validated)

    return register


def on_lite0(measured: str, remedy: str) -> str:
    """Return the caution of a method whose maps measured no better than those of a control."""
    return f"On EfficientNet-Lite0, its maps were {measured}. Use {remedy}."


def rectifies(chosen: Method, keywords: Mapping[str, Any]) -> bool:
    """Return whether the method with these keywords ends in a ReLU, for passes that compute several maps at once.

    Errors   BadOption, as for a call of the method
    """
    return check_keywords_of(chosen, keywords)[0]


def find(chosen: MethodLike) -> Method:
    """Return a method by its name or by its function; a `Method` is returned as it is.

    Names match without case, hyphens, underscores and spaces, also titles and `SHORT_NAMES`: "GradCAM", "Grad-CAM++".

    Errors   BadOption with similar names, or for a function that is not a method
    """
    if isinstance(chosen, Method):
        return chosen
    if not isinstance(chosen, str):
        if (known := find_function(chosen)) is not None:
            return known
        if isinstance(chosen, (type, nn.Module)) or not callable(chosen):
            raise BadOption(
                f"The method is {kind_of(chosen)}. Give a name or a function of METHODS, such as 'grad_cam'."
            )
        raise BadOption(
            f"{shorten(chosen)} is not a method of this library. Give a name or a function of METHODS, such as "
            "'grad_cam', or register your own function with the decorator explainers.registry.method."
        )
    name = chosen
    if name not in METHODS:
        keys = {name_key(each.title): own for own, each in METHODS.items()}
        keys = SHORT_NAMES | keys | {name_key(own): own for own in METHODS}
        name = keys.get(name_key(chosen), chosen)
    if name not in METHODS:
        raise BadOption(f"Unknown method {shorten(name)}. {nearest(name, METHODS)}METHODS lists all {len(METHODS)}.")
    return METHODS[name]


SHORT_NAMES = {"ig": "integrated_gradients", "shap": "kernel_shap", "gbp": "guided_backprop"}
"""Common abbreviations of methods. SHAP without further words is the method of its paper for any model."""


def name_key(name: str) -> str:
    """Return a name without case, hyphens, underscores and spaces; "++" is "pp", as in Grad-CAM++."""
    return re.sub(r"[^a-z0-9]", "", name.casefold().replace("×", "x").replace("++", "pp"))


def find_function(function: object) -> Method | None:
    """Return the method with this function, or None."""
    return next((each for each in METHODS.values() if each.function is function), None)
