"""Labels and messages of the Compare view."""

from __future__ import annotations

from saliscope.compute import messages, text_messages
from saliscope.compute.objects.messages import STRONGEST

COMPARE = "Compare"
MAPS = "Side by side"
STOPPED = "Stopped before it started."
ONE_CLASS = "This network has only one class, so there is no second class to compare."
NOTHING_ELSE = {
    "detection": "No second object was detected in this image.",
    "segmentation": "No second class has a region in this image.",
}

TERMS = {
    "add": "Add panel",
    "add_hint": "The next likely class if the panels compare classes, or else another kind of method",
    "proposals": ["grad_cam", "input_x_gradient", "lrp", "eigen_cam", "saliency"],
    "pair": "Compare top two classes",
    "pair_hint": "Two panels with the same limits: the predicted class and the runner-up",
    "stop": "Stop",
    "stop_name": "Stop the comparison",
    "stopped": STOPPED,
    "left_out": "The zip archive contains only finished maps, because a stopped map cannot be recomputed.",
    "again": "Recompute",
    "duplicate": "Duplicate",
    "remove": "Remove",
    "opacity": "Opacity",
    "colors": "Colors",
    "color_map": "Color map",
    "smooth": "Smooth",
    "signed": "Signed",
    "signed_hint": "Show negative values in blue. If off, show magnitudes",
    "limits": "Limits",
    "pinned": "Shared",
    "pinned_hint": "One color range for panels with the same model, method and layer",
    "free": "Per panel",
    "free_hint": "Each panel has its own color range",
    "method": messages.METHOD_LABEL,
    "target": messages.CLASS_LABEL,
    "kinds": {"detection": "Object", "segmentation": "Region", "text": text_messages.FIELD["title"]},
    "layer": messages.LAYER_LABEL,
    "model": messages.MODEL_LABEL,
    "page": "Same as page",
    "top": messages.TOP_CHOICE,
    "strongest": STRONGEST["detection"],
    "largest": STRONGEST["segmentation"],
    "first": "First sentence",
    "runner": "Runner-up",
    "second": "Second sentence",
    "no_layer": "none",
    "no_class": "class-agnostic",
    "computing": "Computing …",
    "empty": messages.EMPTY_OVERLAY,
    "old": "Outdated: settings have changed",
    "late": "No response yet.",
    "outside": "outside the crop of this network",
    "same_range": "Same color range: {panels}",
    "own_range": "Own color range",
    "equal": "The two maps are equal within rounding (largest difference {difference}).",
    "difference": "Difference",
    "pairs": "Panels",
    "swap": "Swap",
    "correlation": "Rank correlation",
    "constant": "undefined: one map is constant",
    "constants": "undefined: both maps are constant",
    "few": "undefined: fewer than two cells have a value",
    "apart": "The crops of the two networks do not overlap.",
    "no_map": "no map",
    "panel": "Panel {letter}",
    "of_panel": "{name} of panel {letter}",
    "progress": "Progress",
    "facts": {"grid": "Grid", "unit": "Unit", "range": "Range", "signs": "Signs", "region": "Region"},
    "interpolated": "{grid}; {grids} interpolated",
    "none": "none",
    "scaled": "none: the units differ ({units}), so each map is divided by its largest magnitude",
    "range": "{low} to {high}",
    "magnitudes": "magnitudes for maps with both signs",
    "common_region": "the part of the image that both models receive",
    "and": "and",
    "correlated": "ρ = {rho} over {cells} cells",
    "waiting": "The difference appears here when both maps are available.",
}
"""Labels used by page/compare/compare.js."""
