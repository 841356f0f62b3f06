"""What each method's map says, in the words of "What am I seeing?".

A method has what strong values mean, in a map with signs what negative ones mean, and what cannot be concluded.
{whom} is the class or the thing explained, {layer} the layer, {grid} the cells of the map. Together with the unit it
is at most `MOST` words, which a test counts.
"""

from __future__ import annotations

MOST = 60

CAM = "cells of {layer} that speak for {whom}"
AGAINST = "those that speak against it"
LESS = "less than average"
SWAY = "pixels that sway the score of {whom} most, up or down"
PARTS = "pixels that add most to the score of {whom}, or take most from it"
GAIN = "parts without which {whom} scores lower"
LOSS = "parts without which it scores higher"

COARSE = "Its {grid} cells give no outlines."
LOCAL = "This holds for a tiny change: covering those pixels may do something else."
BASELINE = "Another comparison picture gives another map."
COVER = "What covers the parts matters: another colour gives another map."

SEEN: dict[str, tuple[str, str, str]] = {
    "grad_cam": (
        "cells of {layer} whose channels raise the score of {whom}",
        "cells whose channels lower it",
        "A channel counts alike everywhere, so that the map may reach beside the evidence. " + COARSE,
    ),
    "grad_cam_pp": (
        CAM + ", with several things of the class weighed alike",
        AGAINST,
        "Only positive gradients count, so that it hardly separates similar classes. " + COARSE,
    ),
    "hires_cam": ("what each cell of {layer} adds to the score of {whom}", "what each takes from it", COARSE),
    "element_wise_grad_cam": (CAM, AGAINST, "What speaks against it is left out, even in the same cell. " + COARSE),
    "layer_cam": (CAM + ", by each cell's own gradient", AGAINST, "Only positive gradients count. " + COARSE),
    "xgrad_cam": (CAM, AGAINST, "A channel counts alike everywhere, so that the map may reach beside. " + COARSE),
    "smooth_grad_cam_pp": (
        CAM + ", on average over noisy copies",
        AGAINST,
        "It hardly separates similar classes. " + COARSE,
    ),
    "shapley_cam": (CAM, AGAINST, "A channel counts alike everywhere, so that the map may reach beside. " + COARSE),
    "finer_cam": (
        "cells of {layer} that tell {whom} from the classes most like it",
        "those that speak for the others",
        "What they have in common is left out on purpose. " + COARSE,
    ),
    "cam": ("what each cell of {layer} adds to the score of {whom}", "what each takes from it", COARSE),
    "eigen_cam": (
        "what stands out most in the activations of {layer}",
        LESS,
        "No class is asked: what stands out need not matter to the prediction.",
    ),
    "eigen_grad_cam": (
        "the main pattern in what {layer} adds to the score of {whom}",
        LESS,
        "One pattern of several: the rest of the evidence is left out.",
    ),
    "seg_eigen_cam": (
        "the main pattern of {layer} where the score of {whom} is sensitive",
        LESS,
        "Sensitive for or against: the sign is chosen, not measured.",
    ),
    "kpca_cam": (
        "what stands out most in the activations of {layer}",
        LESS,
        "No class is asked: what stands out need not matter to the prediction.",
    ),
    "fem": (
        "cells of {layer} with unusually strong activations",
        "negative activations",
        "No class is asked: strong need not mean that it matters to the prediction.",
    ),
    "refine_cam": (
        "pixels that several layers agree on for {whom}",
        AGAINST,
        "What one layer misses is missing in the product.",
    ),
    "sess": (
        "places that speak for {whom} in windows of several sizes",
        AGAINST,
        "A window sees no surroundings: evidence that needs them is missed.",
    ),
    "ablation_cam": (
        "cells of {layer} whose channels the score of {whom} needs",
        "cells whose channels lower it",
        "Channels are removed one at a time: those that replace each other look unneeded. " + COARSE,
    ),
    "score_cam": (
        "cells of {layer} in channels whose cut-outs score high for {whom}",
        AGAINST,
        "Often all channels weigh nearly the same: then it shows activity, not the class.",
    ),
    "ss_cam": (
        "cells of {layer} in channels whose noisy cut-outs score high for {whom}",
        AGAINST,
        "Often all channels weigh nearly the same: then it shows activity, not the class.",
    ),
    "is_cam": (
        "cells of {layer} in channels whose cut-outs score high for {whom} while they fade in",
        AGAINST,
        "Often all channels weigh nearly the same: then it shows activity, not the class.",
    ),
    "attention_rollout": (
        "patches that attention mixes into the result",
        LESS,
        "No class is asked, and attention alone says nothing about for or against.",
    ),
    "transformer_attribution": (
        "patches whose attention speaks for {whom}",
        AGAINST,
        "Only what speaks for it is kept, and only what travels through attention.",
    ),
    "le_grad": (
        "patches to which more attention would raise the score of {whom}",
        AGAINST,
        "This holds for a tiny change, and what speaks against it is left out.",
    ),
    "smooth_grad": (SWAY, "pixels that lower it when they grow", LOCAL),
    "smooth_grad_squared": (SWAY, "", "For or against is lost in the square. " + LOCAL),
    "var_grad": (
        "pixels whose pull on the score of {whom} wavers most under noise",
        "",
        "Wavering is not evidence: for or against cannot be told.",
    ),
    "gradient_shap": (PARTS, "what takes from it", "It is measured against random pictures; others give another map."),
    "lrp": (PARTS, "what takes from it", "Rules decide how a layer hands the score back: other rules, another map."),
    "deep_lift": (PARTS + ", against a blank picture", "what takes from it", BASELINE),
    "deep_lift_shap": (PARTS + ", against random pictures", "what takes from it", BASELINE),
    "guided_grad_cam": (
        "edges inside the region that Grad-CAM finds at {layer} for {whom}",
        "edges of the other sign",
        "The edges are the picture's: they hardly depend on the class.",
    ),
    "full_grad": (
        "pixels and cells through which {whom} is sensitive, over all layers",
        AGAINST,
        "Magnitudes are added: for or against cannot be told.",
    ),
    "xrai": (
        "regions that add most to the score of {whom}",
        "regions that take from it",
        "Regions come from the picture's colours: their outlines are not what the network saw.",
    ),
    "integrated_gradients": (PARTS + ", against a blank picture", "what takes from it", BASELINE),
    "guided_integrated_gradients": (PARTS + ", against a blank picture", "what takes from it", BASELINE),
    "blur_integrated_gradients": (
        PARTS + ", against a blurred picture",
        "what takes from it",
        "What survives the blur is not counted.",
    ),
    "forgrad": (SWAY, AGAINST, "Fine detail is filtered out on purpose. " + LOCAL),
    "excitation_backprop": (
        "pixels where a search from {whom} down through the network ends",
        "pixels where one for all other classes ends",
        "Only connections that excite are followed: what speaks against it is invisible.",
    ),
    "guided_backprop": (
        "edges that excite {whom}",
        "edges of the other sign",
        "It hardly depends on class or weights: read it as edges, not as a reason.",
    ),
    "input_x_gradient": (PARTS, "what takes from it", "One noisy gradient: single pixels mean nothing."),
    "saliency": (SWAY, "pixels that lower it when they grow", "One noisy gradient: single pixels mean nothing."),
    "deconvnet": (
        "edges that excite {whom}",
        "edges of the other sign",
        "It hardly depends on the class, and the network's strides leave a pattern.",
    ),
    "occlusion": (GAIN, LOSS, COVER),
    "rise": ("pixels that help the score of {whom} when random cells are hidden", "pixels that hurt it", COVER),
    "feature_ablation": (GAIN, LOSS, "Parts are covered one by one: those that replace each other look unneeded."),
    "lime": (GAIN, LOSS, "A simple model was fitted: it may fit badly, and another seed differs."),
    "kernel_shap": (GAIN + ", as a fair share", LOSS, COVER),
    "shapley_sampling": (GAIN + ", as a fair share", LOSS, COVER),
    "extremal_perturbation": (
        "the part that keeps the score of {whom} high when all else is blurred",
        "",
        "The size of the part was given: it is no measure of what matters.",
    ),
    "mc_rise": ("pixels whose recolouring lowers the score of {whom}", "pixels whose recolouring raises it", COVER),
    "d_rise": ("pixels that help the detector find {whom} again", "pixels that hinder it", COVER),
    "sobol": (
        "cells that cause most of the score's ups and downs for {whom} when cells are hidden",
        "",
        "For or against cannot be told, and another cover gives another map.",
    ),
    "hsic": (
        "cells that the score of {whom} depends on, in any way, when cells are hidden",
        "",
        "For or against cannot be told, and another cover gives another map.",
    ),
    "feature_maps": (
        "where this channel of {layer} responds",
        "where it responds negatively",
        "A response is not a reason: whether a class uses it, its effect tells.",
    ),
    "deep_feature_factorization": (
        "where one of the main concepts of {layer} is found",
        "where it is missing",
        "Nobody named the concepts, and their number was chosen.",
    ),
    "token_pca": (
        "one end of a main pattern of {layer}",
        "its other end",
        "The sign is arbitrary, and no class is asked.",
    ),
    "attention_heads": (
        "patches that this head attends to",
        LESS,
        "Attention is not a reason: whether it matters to a class is not asked.",
    ),
    "layer_conductance": (
        "cells of {layer} through which most of the score of {whom} flows",
        "cells through which it is lowered",
        BASELINE,
    ),
    "layer_integrated_gradients": (
        "cells of {layer} that add most to the score of {whom}",
        "cells that take from it",
        BASELINE,
    ),
    "internal_influence": (
        "cells of {layer} that would raise the score of {whom} if they were stronger",
        "cells that would lower it",
        "Influence is not presence: a cell may be silent here.",
    ),
    "channel_effects": (
        "channels of {layer} that the score of {whom} needs",
        "channels that lower it",
        "Channels are removed one at a time: those that replace each other look unneeded.",
    ),
    "edge_control": (
        "edges of the photograph",
        "",
        "The network was not asked: a map that looks like this may be edges alone.",
    ),
    "centre_control": ("the middle of the picture", "", "The network was not asked: a map should say more than this."),
    "random_control": (
        "random numbers, which mean nothing",
        "",
        "The network was not asked: a map should do better than this.",
    ),
}
"""By method: what strong values are, what negative ones are, and what the map cannot say."""

UNITS = {
    "logit": "Values are in logits, the class's score before softmax.",
    "logit per unit of input": "Values are the change of the score (logit) per unit of input.",
    "squared logit per unit of input": "Values are squares of the score's change (logit) per unit of input.",
    "logit per pixel": "Values are logits per pixel: the effect of a part, spread over it.",
    "logit per unit of the layer": "Values are the change of the score (logit) per unit of the layer.",
    "share": "Values are shares of attention, from 0 to 1.",
    "": "Values compare within this map alone.",
}
"""A sentence by the unit of the table of methods; "" is a map without a unit."""

TASKS = {
    "detection": {
        "logits, the class's score before softmax": "the detection's score, times how well its box is met",
        " (logit)": "",
        "logits": "score",
    },
    "segmentation": {"the class's score before softmax": "the mean over the region's pixels"},
}
"""What other words a unit has for networks that find things: their target is another."""

OWN_UNITS = {
    "eigen_cam": "Values are in the layer's own units.",
    "fem": "Values are in the layer's own units.",
    "deep_feature_factorization": "Values are in the layer's own units.",
    "feature_maps": "Values are the layer's own output.",
    "token_pca": "Values are in the layer's own units.",
    "score_cam": "Values are a mean of activations, without a unit.",
    "ss_cam": "Values are a mean of activations, without a unit.",
    "is_cam": "Values are a mean of activations, without a unit.",
    "refine_cam": "Values go from 0 to 1, of the strongest possible.",
    "guided_grad_cam": "Values are products, gradient times Grad-CAM, without a plain unit.",
    "excitation_backprop": "Values are probabilities that sum to 1.",
    "extremal_perturbation": "1 is kept, 0 is blurred.",
    "sobol": "Values are shares of the score's variance.",
    "le_grad": "Values are logits per unit of attention.",
    "attention_rollout": "Values are shares of attention that sum to 1.",
}
"""Where a sentence by the unit would not be right."""
