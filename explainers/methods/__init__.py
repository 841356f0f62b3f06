"""All methods. Importing this package fills `registry.METHODS`, in the order of the imports below.

Every function decorated with `@method` in these modules is public; a new module needs one import here. In the examples
of the docstrings, `model` is torchvision's resnet18, `vit` its vit_b_16, and `images` a batch of one image of 224 px.
"""

# ruff: noqa: F403 star imports let type checkers find the methods; `__all__` below excludes everything else
from explainers.methods.cams.gradient_cams import *  # isort: skip
from explainers.methods.cams.derived_score_cams import *  # isort: skip
from explainers.methods.cams.activation_cams import *  # isort: skip
from explainers.methods.cams.score_cams import *  # isort: skip
from explainers.methods.features import *  # isort: skip
from explainers.methods.gradients.input_gradients import *  # isort: skip
from explainers.methods.gradients.path_integrals import *  # isort: skip
from explainers.methods.gradients.guided_paths import *  # isort: skip
from explainers.methods.gradients.filtered_gradients import *  # isort: skip
from explainers.methods.gradients.layer_paths import *  # type: ignore[assignment]  # isort: skip (redefines Steps)
from explainers.methods.gradients.layer_conductance import *  # isort: skip
from explainers.methods.gradients.region_attribution import *  # isort: skip
from explainers.methods.backward.modified_backprop import *  # isort: skip
from explainers.methods.backward.deep_lift import *  # isort: skip
from explainers.methods.backward.lrp import *  # isort: skip
from explainers.methods.cams.combined import *  # isort: skip
from explainers.methods.gradients.bias_gradients import *  # isort: skip
from explainers.methods.perturbation.masks import *  # isort: skip
from explainers.methods.perturbation.random_masks import *  # isort: skip
from explainers.methods.perturbation.extremal import *  # isort: skip
from explainers.methods.perturbation.vit_cx import *  # isort: skip
from explainers.methods.perturbation.surrogates import *  # isort: skip
from explainers.methods.perturbation.sensitivity import *  # isort: skip
from explainers.methods.perturbation.responsibility import *  # isort: skip
from explainers.methods.controls import *  # isort: skip
from explainers.methods.attention import *  # isort: skip
from explainers.registry import METHODS  # isort: skip

# Assigned via globals(), because type checkers stop following star imports at an `__all__` that they cannot evaluate.
globals()["__all__"] = list(METHODS)
