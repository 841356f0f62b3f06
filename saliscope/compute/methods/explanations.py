"""Texts of the map guide: how to read the map of each method.

For each method, the texts tell what high values mean, what negative values mean (for signed maps), and what the map
does not show. {target} is the explained class or object, {layer} the layer, and {grid} the grid of the map. A guide has
at most `MOST` words including the unit, which a test checks.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 60

CAM = "cells of {layer} with evidence for {target}"
AGAINST = "evidence against it"
LESS = "below average"
CELL, OF_CELL = "positive contribution of a cell of {layer} to the score of {target}", "negative contribution"
MASKS = "cells of {layer} in channels that score high for {target} when used as a mask"
LOWER = "pixels that lower it when they increase"
EDGES, OPPOSITE = "edges that excite {target}", "edges of the opposite sign"
SWAY = "pixels that affect the score of {target} most, in either direction"
PARTS = "pixels with the largest contribution to the score of {target}"
NEGATIVE = "negative contributions"
GAIN = "parts that increase the score of {target}"
LOSS = "parts that decrease it"

COARSE = "The {grid} grid is too coarse for outlines."
ONE_WEIGHT = "Each channel has one weight for all positions, so the map may extend beyond the evidence. " + COARSE
ACTIVITY = "If all channel weights are nearly equal, the map shows activity instead of the class."
PATTERN = "Class-agnostic: the pattern may be irrelevant to the prediction."
NOISY = "A single gradient is noisy, so individual pixels are not meaningful."
LOCAL = "Only valid for small changes: occluding these pixels may have a different effect."
CONTROL = "A control that does not use the network. "
BASELINE = "The map depends on the baseline."
NO_SIGN = "The map has no sign and depends on the baseline that replaces the cells."
COVER = "The map depends on the baseline that replaces the parts."

GUIDES: dict[str, tuple[str, str, str]] = {
    "grad_cam": (
        "cells of {layer} whose channels raise the score of {target}",
        "cells whose channels lower it",
        ONE_WEIGHT,
    ),
    "grad_cam_pp": (
        CAM + ", with equal weight for several objects of the class",
        AGAINST,
        "Only positive gradients are used, so the map hardly separates similar classes. " + COARSE,
    ),
    "hires_cam": (CELL, OF_CELL, COARSE),
    "element_wise_grad_cam": (CAM, AGAINST, "Evidence against it is ignored, even in the same cell. " + COARSE),
    "layer_cam": (
        CAM + ", weighted by the gradient of each cell",
        AGAINST,
        "Only positive gradients are used. " + COARSE,
    ),
    "xgrad_cam": (CAM, AGAINST, ONE_WEIGHT),
    "smooth_grad_cam_pp": (
        CAM + ", averaged over noisy copies",
        AGAINST,
        "The map hardly separates similar classes. " + COARSE,
    ),
    "shapley_cam": (CAM, AGAINST, ONE_WEIGHT),
    "finer_cam": (
        "cells of {layer} that distinguish {target} from similar classes",
        "evidence for the other classes",
        "Evidence shared by these classes is ignored on purpose. " + COARSE,
    ),
    "cam": (CELL, OF_CELL, COARSE),
    "eigen_cam": ("the dominant pattern in the activations of {layer}", LESS, PATTERN),
    "eigen_grad_cam": (
        "the dominant pattern in the contribution of {layer} to the score of {target}",
        LESS,
        "Only one of several patterns: the remaining evidence is ignored.",
    ),
    "seg_eigen_cam": (
        "the dominant pattern of {layer} where the score of {target} is sensitive",
        LESS,
        "The sign is a convention: sensitive cells may increase or decrease the score.",
    ),
    "kpca_cam": ("the dominant nonlinear pattern in the activations of {layer}", LESS, PATTERN),
    "fem": (
        "cells of {layer} with unusually strong activations",
        "negative activations",
        "Class-agnostic: strong activations may be irrelevant to the prediction.",
    ),
    "refine_cam": (
        "pixels that several layers agree on for {target}",
        AGAINST,
        "Evidence that one layer misses is missing in the product.",
    ),
    "sess": (
        "positions with evidence for {target} in windows of several sizes",
        AGAINST,
        "A window has no surrounding context, so evidence that needs context is missed.",
    ),
    "ablation_cam": (
        "cells of {layer} whose channels increase the score of {target}",
        "cells whose channels decrease it",
        "Channels are removed one at a time, so redundant channels look unimportant. " + COARSE,
    ),
    "score_cam": (MASKS, AGAINST, ACTIVITY),
    "ss_cam": (MASKS + " on noisy images", AGAINST, ACTIVITY),
    "is_cam": (MASKS + " that fades in", AGAINST, ACTIVITY),
    "attention_rollout": (
        "patches that attention mixes into the output",
        LESS,
        "Class-agnostic: attention does not tell whether a patch is evidence for or against a class.",
    ),
    "transformer_attribution": (
        "patches whose attention is evidence for {target}",
        AGAINST,
        "Only positive evidence is kept, and only evidence that passes through attention.",
    ),
    "le_grad": (
        "patches for which more attention would increase the score of {target}",
        AGAINST,
        "Only valid for small changes, and negative evidence is ignored.",
    ),
    "grad_eclip": (
        "patches whose values in the last attention raise the score of {target}",
        AGAINST,
        "Only the last attention is explained; earlier ones have already mixed the patches.",
    ),
    "smooth_grad": (SWAY, LOWER, LOCAL),
    "smooth_grad_squared": (SWAY, "", "Squares have no sign, so the direction is lost. " + LOCAL),
    "var_grad": (
        "pixels whose gradient for {target} varies most under noise",
        "",
        "Variance is not evidence: it does not tell whether a pixel increases or decreases the score.",
    ),
    "gradient_shap": (PARTS, NEGATIVE, "The map depends on the random baselines."),
    "lrp": (PARTS, NEGATIVE, "The map depends on the rules that propagate relevance."),
    "attn_lrp": (
        PARTS + ", also through queries and keys",
        NEGATIVE,
        "Softmaxes absorb relevance, and values of opposite signs partly cancel.",
    ),
    "cp_lrp": (
        PARTS,
        NEGATIVE,
        "Attention weights are constants, so pixels that only direct the attention are missed.",
    ),
    "deep_lift": (PARTS + ", compared with a blank image", NEGATIVE, BASELINE),
    "deep_lift_shap": (PARTS + ", compared with random images", NEGATIVE, BASELINE),
    "guided_grad_cam": (
        "edges inside the region that Grad-CAM highlights at {layer} for {target}",
        OPPOSITE,
        "The edges come from the image and hardly depend on the class.",
    ),
    "full_grad": (
        "pixels and cells of all layers to which {target} is sensitive",
        AGAINST,
        "Magnitudes are added, so the map does not separate evidence for and against the class.",
    ),
    "xrai": (
        "regions with the largest contribution to the score of {target}",
        "regions that decrease it",
        "The regions are a color segmentation of the image. Their outlines do not come from the network.",
    ),
    "integrated_gradients": (PARTS + ", compared with a blank image", NEGATIVE, BASELINE),
    "guided_integrated_gradients": (PARTS + ", compared with a blank image", NEGATIVE, BASELINE),
    "blur_integrated_gradients": (
        PARTS + ", compared with a blurred image",
        NEGATIVE,
        "Features that survive the blur are not counted.",
    ),
    "forgrad": (SWAY, AGAINST, "Fine detail is filtered out on purpose. " + LOCAL),
    "excitation_backprop": (
        "pixels reached by excitatory connections from {target}",
        "pixels reached from all other classes",
        "Only excitatory connections are followed, so evidence against the class is not shown.",
    ),
    "guided_backprop": (
        EDGES,
        OPPOSITE,
        "The map hardly depends on the class or the weights. It shows edges, not an explanation.",
    ),
    "input_x_gradient": (PARTS, NEGATIVE, NOISY),
    "saliency": (SWAY, LOWER, NOISY),
    "deconvnet": (EDGES, OPPOSITE, "The map hardly depends on the class, and strides of the network leave a pattern."),
    "occlusion": (GAIN, LOSS, COVER),
    "rise": (
        "pixels that increase the score of {target} when random cells are masked",
        "pixels that decrease it",
        COVER,
    ),
    "feature_ablation": (GAIN, LOSS, "Parts are occluded one at a time, so redundant parts look unimportant."),
    "lime": (GAIN, LOSS, "The fitted linear model may be inaccurate, and the map depends on the seed."),
    "kernel_shap": (GAIN + " (Shapley values)", LOSS, COVER),
    "shapley_sampling": (GAIN + " (Shapley values)", LOSS, COVER),
    "extremal_perturbation": (
        "the part that keeps the score of {target} high when everything else is blurred",
        "",
        "The area of the part is an option, not a result.",
    ),
    "vit_cx": (
        "pixels in patterns of {layer} that keep the score of {target} high when only they are visible",
        "pixels in patterns that lower it",
        "Nearby pixels share a pattern, so outlines are coarse.",
    ),
    "mc_rise": (
        "pixels whose recoloring decreases the score of {target}",
        "pixels whose recoloring increases it",
        COVER,
    ),
    "d_rise": ("pixels that help the detector to detect {target} again", "pixels that hinder it", COVER),
    "sobol": ("cells that cause most of the variance of the score of {target} when cells are masked", "", NO_SIGN),
    "hsic": ("cells that the score of {target} depends on when cells are masked", "", NO_SIGN),
    "rex": (
        "parts without which {target} is no longer predicted",
        "",
        "Only decisions count: a part that lowers the score but keeps the prediction has no responsibility.",
    ),
    "feature_maps": (
        "where this channel of {layer} is active",
        "negative activations",
        "An active channel may be irrelevant to the class. Its effect shows whether the class uses it.",
    ),
    "deep_feature_factorization": (
        "where one of the main concepts of {layer} is present",
        "where it is absent",
        "The concepts have no names, and their number is an option.",
    ),
    "token_pca": (
        "positive values of a principal component of {layer}",
        "negative values",
        "The sign is arbitrary, and the map is class-agnostic.",
    ),
    "attention_heads": (
        "patches that this head attends to",
        LESS,
        "Class-agnostic: attention does not tell whether a patch matters to a class.",
    ),
    "layer_conductance": (
        "cells of {layer} through which most of the score of {target} flows",
        "cells that decrease it",
        BASELINE,
    ),
    "layer_integrated_gradients": (
        "cells of {layer} with the largest contribution to the score of {target}",
        "cells that decrease it",
        BASELINE,
    ),
    "internal_influence": (
        "cells of {layer} that would increase the score of {target} if they were stronger",
        "cells that would decrease it",
        "Influence is not activity: a cell with high influence may be inactive here.",
    ),
    "channel_effects": (
        "channels of {layer} that increase the score of {target}",
        "channels that decrease it",
        "Channels are removed one at a time, so redundant channels look unimportant.",
    ),
    "edge_control": ("edges of the image", "", CONTROL + "A map that looks like this may only show edges."),
    "center_control": ("the center of the image", "", CONTROL + "A map should be more informative than this."),
    "random_control": ("random numbers without meaning", "", CONTROL + "A map should be better than this."),
}
"""By method: the meaning of high values, the meaning of negative values, and the limits of the map."""


@dataclass(frozen=True)
class ScoreWords:
    """What the unit of a score is called in the descriptions of units below."""

    values: str
    """After "Values are in"."""
    score: str
    plural: str
    """Before "per pixel"."""


SCORES = {
    "softmax": ScoreWords("logits, the class score before softmax", "the score (logit)", "logits"),
    "sigmoid": ScoreWords("logits, the class score before the sigmoid", "the score (logit)", "logits"),
    "identity": ScoreWords("probabilities, the output of the network", "the score (probability)", "probabilities"),
    "log": ScoreWords(
        "log-probabilities, the output of the network", "the score (log-probability)", "log-probabilities"
    ),
    "logit": ScoreWords("the unit of the score", "the score", "scores"),
}
"""By `LoadedModel.score`, for classifiers and regression."""
TASKS = {
    "detection": ScoreWords("the detection score times the overlap with its box", "the score", "score"),
    "segmentation": ScoreWords("logits, averaged over the pixels of the region", "the score (logit)", "logits"),
}
"""By task, for other networks."""
SENTENCE = ScoreWords("units of cosine similarity", "the similarity", "units of cosine similarity")
"""For a sentence that is explained instead of a class."""
CHANNEL = ScoreWords("the unit of the channel's output", "the mean of the channel", "units of the channel's output")
"""For a channel that is explained instead of a class."""

UNITS = {
    "logit": "Values are in {values}.",
    "logit per unit of input": "Values are the change of {score} per unit of input.",
    "squared logit per unit of input": "Values are the squared change of {score} per unit of input.",
    "logit per pixel": "Values are in {plural} per pixel: the effect of a part divided by its area.",
    "logit per unit of the layer": "Values are the change of {score} per unit of the layer.",
    "share": "Values are shares of attention, from 0 to 1.",
    "": "Values are only comparable within this map.",
}
"""By the unit of the method: its description. An empty unit means that the map has none."""

OWN_UNITS = {
    **dict.fromkeys(
        ("eigen_cam", "fem", "deep_feature_factorization", "token_pca"), "Values are in the units of the layer output."
    ),
    "feature_maps": "Values are the output of the layer.",
    **dict.fromkeys(("score_cam", "ss_cam", "is_cam"), "Values are weighted means of activations without a unit."),
    "refine_cam": "Values range from 0 to 1, the possible maximum.",
    "guided_grad_cam": "Values are products of gradient and Grad-CAM without a unit.",
    "excitation_backprop": "Values are probabilities that sum to 1.",
    "extremal_perturbation": "1 is kept, 0 is blurred.",
    "sobol": "Values are shares of the variance of {score}.",
    "rex": "Values are degrees of responsibility, summed over the steps.",
    "le_grad": "Values are in {plural} per unit of attention.",
    "attention_rollout": "Values are shares of attention that sum to 1.",
}
"""Descriptions of units for methods that differ from the table above."""
