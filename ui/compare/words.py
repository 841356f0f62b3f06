"""Every sentence of the comparison, those of its script included."""

from __future__ import annotations

from ui import words

COMPARE = "Compare"
STOPPED = "Stopped before it began."
ONE_CLASS = "This network has one class: there is none to set beside it."
NOTHING_ELSE = {
    "detection": "No second object was found in this picture.",
    "segmentation": "No second class has a region in this picture.",
}
NOT_A_PANEL = "This is not a panel of the comparison."

TERMS = {
    "add": "Add panel",
    "pair": "Predicted + runner-up",
    "pair_hint": "Two panels: the predicted class beside the next one, with the same limits",
    "stop": "Stop",
    "figure": "Save figure",
    "figure_hint": "All panels with colour bars and captions, PNG at twice the size",
    "bundle": "Save zip",
    "bundle_hint": "Photograph, maps, figures and every parameter, for python app.py replay",
    "packing": "Packing…",
    "left_out": "The zip holds the finished maps alone: a stopped one cannot be recomputed.",
    "again": "Compute again",
    "duplicate": "Duplicate",
    "remove": "Remove",
    "opacity": "Opacity",
    "colours": "Colours",
    "smooth": "Smooth",
    "signed": "Signed",
    "signed_hint": "Negative values in blue; off: magnitudes",
    "limits": "Limits",
    "pinned": "Pinned",
    "pinned_hint": "One range of colours for all panels",
    "free": "Free",
    "free_hint": "Each panel has its own range of colours",
    "method": words.METHOD_LABEL,
    "target": words.CLASS_LABEL,
    "object": "Object",
    "region": "Region",
    "layer": words.LAYER_LABEL,
    "model": words.MODEL_LABEL,
    "page": "As on the page",
    "top": words.TOP_CHOICE,
    "strongest": words.STRONGEST["detection"],
    "largest": words.STRONGEST["segmentation"],
    "runner": "Runner-up",
    "no_layer": "none",
    "no_class": "no part",
    "computing": "Computing …",
    "empty": words.EMPTY_OVERLAY,
    "old": "Of the former settings",
    "late": "No answer yet.",
    "outside": "outside what this network sees",
    "units": "The units differ: a common range compares their figures all the same.",
    "difference": "Difference",
    "pairs": "Which two",
    "swap": "Swap",
    "correlation": "Rank correlation",
    "constant": "not defined: one map is constant",
    "constants": "not defined: both maps are constant",
    "few": "not defined: fewer than two cells have a value",
    "apart": "The two networks see no common part of the photograph.",
    "no_map": "no map",
    "waiting": "The difference appears here once both maps are there.",
}
"""What the script says."""
