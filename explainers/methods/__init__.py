"""All methods; importing this package fills `registry.METHODS`, in the order of these lines.

A function decorated with `@method` in one of these files is public by that alone; a new file needs one line here. In
the docstrings' examples `model` is torchvision's resnet18, `vit` its vit_b_16, and `images` one photograph of 224 px.
"""

# ruff: noqa: F403 the files say what there is: type checkers follow the stars, `__all__` below keeps out the rest
from explainers.methods.cams.gradient_cams import *  # isort: skip
from explainers.methods.cams.activation_cams import *  # isort: skip
from explainers.methods.cams.score_cams import *  # isort: skip
from explainers.methods.features import *  # isort: skip
from explainers.methods.gradients.plain_gradients import *  # isort: skip
from explainers.methods.gradients.noisy_gradients import *  # isort: skip
from explainers.methods.gradients.path_integrals import *  # isort: skip
from explainers.methods.gradients.guided_paths import *  # isort: skip
from explainers.methods.gradients.filtered_gradients import *  # isort: skip
from explainers.methods.gradients.layer_paths import *  # type: ignore[assignment]  # isort: skip (its own Steps)
from explainers.methods.gradients.region_attribution import *  # isort: skip
from explainers.methods.backward.modified_backprop import *  # isort: skip
from explainers.methods.backward.relevance import *  # isort: skip
from explainers.methods.cams.combined import *  # isort: skip
from explainers.methods.gradients.bias_gradients import *  # isort: skip
from explainers.methods.perturbation.masks import *  # isort: skip
from explainers.methods.perturbation.random_masks import *  # isort: skip
from explainers.methods.perturbation.extremal import *  # isort: skip
from explainers.methods.perturbation.surrogates import *  # isort: skip
from explainers.methods.perturbation.sensitivity import *  # isort: skip
from explainers.methods.controls import *  # isort: skip
from explainers.methods.attention import *  # isort: skip
from explainers.registry import METHODS  # isort: skip

# Written this way because type checkers stop following stars at a list that they cannot evaluate.
globals()["__all__"] = list(METHODS)
