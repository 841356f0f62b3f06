"""Saliency and attribution methods for PyTorch image models. Requires only torch.

    import explainers
    cam = explainers.grad_cam(model, images)                 # [N, h, w], raw values, each image's top class
    e = explainers.explain("grad_cam", model, images, 281)   # the same, with scores, statistics and findings

Every method has the signature `method(model, images, target=None, **options)`:

    model    any nn.Module that maps images [N, C, H, W] to scores [N, K]
    images   float tensor, normalized for the model, on its device and in its dtype; for a model with several images as
             input a tuple of tensors, (image, depth): the result is then a tuple too, except for methods of a layer
    target   None (each image's top class; the largest class of a segmentation network, the best detection of a
             detector, with a finding), a class, one class per image, a `Target`, or a function output -> [N]
    layer    for methods that use a layer: None (`default_layer`), a name from `list_layers`, or the module
    forward  how to run the model if not by `model(images)`: a function from images [B, C, H, W] to the output, for any
             B and with independent rows, such as `lambda images: model(images, meta.expand(len(images), -1))` or
             `model.get_image_features`; `explain`, the sweeps and `list_layers` accept it too

Results are raw values, detached, in float32 (float64 for float64 models). `METHODS[name].returns` gives the shape:

    "grid" [N, h, w] at the layer's own size    "pixels" [N, C, H, W], signed    "heat" [N, H, W]
    "channels" [N, K]                           "features" [N, K, h, w]

"grid" and "features" are the layer's own cells. If the network crops, pads, flips or shifts its input before the layer,
they do not cover the input evenly. `Explanation.placement` and `Layer.placement` say where they lie; an `Explanation`
draws and resizes its map there. For a bare map, give it to `resize`, `overlay` and `regions`, or call `place`. A layer
without such positions, for example after sorting or a warp that depends on the image, raises NoSpatialOutput.

Videos and volumes [N, C, T, H, W] have a third spatial axis: their maps are [N, t, h, w], attributions [N, C, T, H, W]
and heat [N, T, H, W]. Methods and metrics that do not support them (`METHODS[name].videos` is False) raise an error.

An image of a batch that is not finite, or whose score is not, gets a map of NaN; the others do not depend on it.

Calls leave no side effects: hooks, `.grad` and the train/eval mode are restored. Several threads may share one model.
"""

from pathlib import Path

from explainers.blocks.partition import Block, Blocks, BlockStep, SkipConnection, network_blocks
from explainers.call.batch_size import keep_freed_memory, release_freed_memory
from explainers.call.layers import default_layer, list_layers
from explainers.call.loop import Partial, largest_batch
from explainers.call.method import Method
from explainers.call.score_kind import detect_score
from explainers.call.text_encoder import text_embedding
from explainers.checks.report import check_explainer
from explainers.concepts.factors import Concept, Concepts, ScaleConcepts, find_concepts
from explainers.concepts.image_parameters import Transform
from explainers.concepts.names import UnitName, name_units
from explainers.concepts.tcav import Tcav, tcav
from explainers.concepts.units import IndexedBatch, LayerUnits, TopImages, UnitIndex, index_units
from explainers.concepts.visualization import FeatureVisualization, feature_visualization
from explainers.default_targets import classes_by_area, detections_by_score, is_background, pixel_classes
from explainers.derived_targets import Contrast, Direction, LogProbability, Probability, Sum, Through, Unit, unit
from explainers.detections import DetrDetections, YoloDetections
from explainers.display.display import Display
from explainers.display.figure import show_channels
from explainers.errors import (
    BadImages,
    BadOption,
    BadTarget,
    ExplainerError,
    LayerNotFound,
    LayerRanRepeatedly,
    NoSpatialOutput,
    UnsupportedModel,
    UnsupportedOperation,
    WrongType,
    is_out_of_memory,
)
from explainers.experiments.arithmetic.sums import WeightedSum
from explainers.experiments.arithmetic.trace import PathStep, ValueTrace, trace_attention, trace_value
from explainers.experiments.compare_models import ModelComparison, compare_models
from explainers.experiments.describe import Description, LayerDescription, describe
from explainers.experiments.interventions.changes import AddNoise, Clamp, Scale, Swap
from explainers.experiments.interventions.intervene import Intervention, intervene, patch_effects
from explainers.experiments.smallest_region import SmallestRegion, pixel_ranks, smallest_region
from explainers.explanation.result import Explanation, show
from explainers.explanation.run import explain
from explainers.explanation.smoothing import Augment, Smoothed, smooth
from explainers.findings import Finding
from explainers.hooks.capture import capture, input_gradients
from explainers.hooks.edit import edit_gradients, edit_inputs, edit_outputs
from explainers.layers.center_fields import center_receptive_fields
from explainers.layers.layer import Layer
from explainers.maps.boxes import Region, regions
from explainers.maps.color_maps import color_map
from explainers.maps.overlays import overlay, overlay_frames
from explainers.maps.resize import fuse, rank_correlation, resize
from explainers.methods import *  # noqa: F403
from explainers.methods.cams.activation_cams import Factors, feature_factors
from explainers.methods.cams.combined import grad_cam_sweep, sweep
from explainers.methods.features import channel_contributions
from explainers.methods.gradients.bias_gradients import FullGradients, full_gradients
from explainers.metrics.comparison import holm
from explainers.metrics.evaluation import Evaluation
from explainers.metrics.judge import judge
from explainers.metrics.metric import METRICS, Metric, find_metric
from explainers.metrics.randomization import Randomization, randomization_test
from explainers.metrics.recommend import recommend
from explainers.metrics.recommendation import RankedMap, Recommendation
from explainers.metrics.removal import Removal, remove_brightest
from explainers.metrics.run import evaluate
from explainers.nested import register_output
from explainers.options import Choice, Option, Range
from explainers.output_targets import BoxScores, MaskScores, Regression, Similarity
from explainers.perturbation.baselines import baseline_of
from explainers.perturbation.imputation import impute
from explainers.perturbation.segments import connected_components
from explainers.placement import Placement, place
from explainers.probabilities import check_score, declared_score, probabilities_of, score_unit
from explainers.registry import METHODS, MethodName
from explainers.rules.rectifiers.before_activation import BeforeActivation
from explainers.targets import Logit, Target
from explainers.training.diagnosis import diagnose_training
from explainers.training.edits import (
    add_gradient_noise,
    clip_gradients,
    freeze,
    record_gradients,
    replace_gradient,
    scale_gradients,
)
from explainers.training.log import GradientLog
from explainers.verdict.facts import Facts
from explainers.verdict.rules import Verdict, describe_results, judge_facts

__version__ = Path(__file__).with_name("version.txt").read_text(encoding="utf-8").strip()
__all__ = [
    *METHODS,
    "METHODS",
    "METRICS",
    "AddNoise",
    "Augment",
    "BadImages",
    "BadOption",
    "BadTarget",
    "BeforeActivation",
    "Block",
    "BlockStep",
    "Blocks",
    "BoxScores",
    "Choice",
    "Clamp",
    "Concept",
    "Concepts",
    "Contrast",
    "Description",
    "DetrDetections",
    "Direction",
    "Display",
    "Evaluation",
    "ExplainerError",
    "Explanation",
    "Factors",
    "Facts",
    "FeatureVisualization",
    "Finding",
    "FullGradients",
    "GradientLog",
    "IndexedBatch",
    "Intervention",
    "Layer",
    "LayerDescription",
    "LayerNotFound",
    "LayerRanRepeatedly",
    "LayerUnits",
    "LogProbability",
    "Logit",
    "MaskScores",
    "Method",
    "MethodName",
    "Metric",
    "ModelComparison",
    "NoSpatialOutput",
    "Option",
    "Partial",
    "PathStep",
    "Placement",
    "Probability",
    "Randomization",
    "Range",
    "RankedMap",
    "Recommendation",
    "Region",
    "Regression",
    "Removal",
    "Scale",
    "ScaleConcepts",
    "Similarity",
    "SkipConnection",
    "SmallestRegion",
    "Smoothed",
    "Sum",
    "Swap",
    "Target",
    "Tcav",
    "Through",
    "Transform",
    "TopImages",
    "Unit",
    "UnitIndex",
    "UnitName",
    "UnsupportedModel",
    "UnsupportedOperation",
    "ValueTrace",
    "Verdict",
    "WeightedSum",
    "WrongType",
    "YoloDetections",
    "add_gradient_noise",
    "baseline_of",
    "capture",
    "center_receptive_fields",
    "channel_contributions",
    "check_explainer",
    "check_score",
    "classes_by_area",
    "clip_gradients",
    "color_map",
    "compare_models",
    "connected_components",
    "declared_score",
    "default_layer",
    "describe",
    "describe_results",
    "detect_score",
    "detections_by_score",
    "diagnose_training",
    "edit_gradients",
    "edit_inputs",
    "edit_outputs",
    "evaluate",
    "explain",
    "feature_factors",
    "feature_visualization",
    "find_concepts",
    "find_metric",
    "freeze",
    "full_gradients",
    "fuse",
    "grad_cam_sweep",
    "holm",
    "impute",
    "index_units",
    "input_gradients",
    "intervene",
    "is_background",
    "is_out_of_memory",
    "judge",
    "judge_facts",
    "keep_freed_memory",
    "largest_batch",
    "list_layers",
    "name_units",
    "network_blocks",
    "overlay",
    "overlay_frames",
    "patch_effects",
    "pixel_classes",
    "pixel_ranks",
    "place",
    "probabilities_of",
    "randomization_test",
    "rank_correlation",
    "recommend",
    "record_gradients",
    "regions",
    "register_output",
    "release_freed_memory",
    "remove_brightest",
    "replace_gradient",
    "resize",
    "scale_gradients",
    "score_unit",
    "show",
    "show_channels",
    "smallest_region",
    "smooth",
    "sweep",
    "tcav",
    "text_embedding",
    "trace_attention",
    "trace_value",
    "unit",
]
