"""Findings as shown on the page: what was found, what it means, and a button that applies the remedy.

The library words findings for programmers and provides their numbers as `facts`. This module words them for users of
the page, with class and layer names. Findings without a text here (of a custom method) keep the library's message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import explainers
from saliscope.compute import messages as page_messages
from saliscope.compute import model_cache
from saliscope.compute.answers import Answer, Settings
from saliscope.percentages import percent

_CAUTIONED = {
    "smooth_grad_squared": "saliency smooth_grad",
    "gradient_shap": "input_x_gradient integrated_gradients blur_integrated_gradients guided_integrated_gradients",
    "lrp": "deep_lift deep_lift_shap",
    "guided_grad_cam": "deconvnet",
    "grad_cam": "eigen_cam kpca_cam fem deep_feature_factorization ss_cam feature_maps token_pca xrai guided_backprop",
}
"""The methods whose cautions recommend a method, by that method."""
RECOMMENDED = {name: recommended for recommended, names in _CAUTIONED.items() for name in names.split()}
"""The method that the caution of a method recommends."""


@dataclass(frozen=True)
class FindingContext:
    """The context of a finding: settings, explained class or object, layer, numbers and remedy."""

    settings: Settings
    target: str
    layer: str
    facts: dict[str, Any]
    remedy: dict[str, Any]

    def name(self, index: Any) -> str:
        """Return the name of a class."""
        return self.settings.loaded.name_of(int(index))

    def number(self, fact: str) -> str:
        """Format a number with few digits."""
        return f"{self.facts[fact]:.3g}"

    @property
    def where(self) -> str:
        """The layer by name, or the image."""
        return f"layer {self.layer}" if self.layer else "the image"

    @property
    def earlier(self) -> str:
        """The earlier layer of the remedy, or an empty string."""
        return str(self.remedy.get("layer", ""))


Message = str | tuple[str, dict[str, Any]]
"""A message, with a remedy if it differs from the library's."""


def describe(finding: explainers.Finding, step: Answer) -> dict[str, Any]:
    """Return a finding in the format that `page/panel/findings.js` draws."""
    settings, layer = step.settings, step.explanation.layer or ""
    context = FindingContext(settings, page_messages.subject(step), layer, finding.facts, finding.remedy)
    message: Message = page_messages.plain(finding.sentence)
    if finding.code in MESSAGES:
        # A custom method may use one of these codes with different facts.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            message = MESSAGES[finding.code](context)
    text, remedy = (message, finding.remedy) if isinstance(message, str) else message
    return item(text, remedy, settings)


def caution(settings: Settings) -> list[dict[str, Any]]:
    """Return the caution of the method, with a button for the method that it recommends."""
    method = settings.method
    if not method.caution:
        return []
    recommended = RECOMMENDED.get(method.name, "")
    return [item(method.caution, {"method": recommended} if _is_supported(recommended, settings) else {}, settings)]


def item(text: str, remedy: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return a message and its button, limited to changes that a click can make."""
    remedy = {name: _to_page_value(name, value, settings) for name, value in remedy.items()}
    remedy = {name: value for name, value in remedy.items() if value is not None}
    return {"sentence": text, **({"remedy": remedy, "label": label(remedy)} if remedy else {})}


def label(remedy: dict[str, Any]) -> str:
    """Return the label of the button."""
    (name, value), *_ = remedy.items()
    if name == "target":
        return f"Explain {page_messages.short(value)}"
    if name == "method":
        return f"Use {explainers.METHODS[value].title}"
    if name == "layer":
        return f"Use layer {value}"
    if name == "relu":
        return "Keep only positive evidence (ReLU)" if value else "Show negative evidence"
    if name == "channels":
        return f"Try all {value:,} channels"
    if (name, value) == ("weights", "increase"):
        return "Weight by score increase"
    return f"Set {name.replace('_', ' ')} to {value}"


def _to_page_value(name: str, value: Any, settings: Settings) -> Any:
    """Return a value of a remedy in the format of the page settings, or None if they do not support it."""
    if name == "target":
        return settings.loaded.name_of(value) if isinstance(value, int) else None
    return value if isinstance(value, (bool, int, float, str)) else None


def _is_supported(name: str, settings: Settings) -> bool:
    return bool(name) and model_cache.why_not(explainers.METHODS[name], settings.loaded) is None


# One function per code


def _unlikely(context: FindingContext) -> Message:
    facts = context.facts
    target, top = context.name(facts["target"]), context.name(facts["top"])
    return (
        f"The network predicts {top} ({percent(facts['top_share'])}). {target} has rank {facts['rank']:,} of "
        f"{facts['of']:,} classes with {percent(facts['share'])}. The map shows evidence for {target}, but not that it "
        "is present."
    )


def _class_insensitive(context: FindingContext) -> Message:
    other, settings = context.name(context.facts["runner_up"]), context.settings
    text = (
        f"The map for {other} is nearly the same (rank correlation {context.facts['correlation']:.2f}), so this map "
        f"does not show why the network predicts {context.target} instead of {other}."
    )
    if settings.method.name != "finer_cam" and _is_supported("finer_cam", settings):
        return f"{text} Use Finer-CAM to see what separates them.", {"method": "finer_cam"}
    return f"{text} Use the Compare view to see both maps side by side."


def _saturated(context: FindingContext) -> Message:
    remedy = {"score": "logit"} if "score" in context.settings.method.options else {}
    return (
        f"The probability is saturated ({context.number('probability')}), so its gradient nearly vanishes. "
        "Explain the logit (the score before softmax) instead."
        if context.settings.loaded.score not in ("identity", "log")
        else f"The network returns probabilities, and this one is saturated ({context.number('probability')}), so its "
        "gradient nearly vanishes. Load a network that returns logits."
    ), remedy


def _no_gradient(context: FindingContext) -> Message:
    if context.facts.get("anywhere"):
        return "None of the tested parts changes the score, so they cannot be ranked. Choose another class."
    return f"The score of {context.target} does not depend on {context.where}: its gradient is exactly zero. " + (
        f"Try the earlier layer {context.earlier}." if context.earlier else "Choose another class or layer."
    )


def _nothing_positive(context: FindingContext) -> Message:
    blank = context.facts["blank"]
    if not context.settings.method.reads_class:
        return "No value is positive" + (", and the map only shows positive values." if blank else ".")
    text = f"No evidence for {context.target} at {context.where}: no value is positive"
    if blank:
        return text + ", and the map only shows positive values. Enable signed values to see evidence against it."
    return text + ". The map shows evidence against it."


def _flat(context: FindingContext) -> Message:
    value = context.facts["value"]
    text = f"The map is {'zero' if value == 0 else context.number('value')} everywhere, so it shows no position. "
    if context.earlier:
        return text + f"Try the earlier layer {context.earlier}, which has more cells."
    return text + ("Choose another class or layer." if context.settings.method.reads_class else "Choose another layer.")


def _nothing_spatial(context: FindingContext) -> Message:
    return f"Layer {context.layer} has a single cell for the whole image, so its map has no spatial information. " + (
        f"Use the earlier layer {context.earlier}." if context.earlier else "Choose an earlier layer."
    )


def _non_finite(context: FindingContext) -> Message:
    first = {
        "layer": f"The output of layer {context.facts['layer']} contains NaN or infinity",
        "scores": "The scores of the network contain NaN or infinity",
        "gradient": "The gradient contains NaN or infinity",
        "map": "The map contains NaN or infinity",
    }[context.facts["part"]]
    precise = ", or set precision to float32 under Options" if "precision" in context.settings.method.options else ""
    return f"{first}, so the map is not reliable. Try another image{precise}. If this does not help, check the weights."


def _bypass(context: FindingContext) -> Message:
    layer, default = context.facts["layer"], context.settings.loaded.default
    share = f"{percent(context.facts['share'])} of the gradient" if "share" in context.facts else "their contribution"
    text = f"Some paths of the network bypass layer {layer}, so {share} is missing in this map."
    if layer == default:
        return text + " Other layers may miss other parts."
    return f"{text} More paths pass through layer {default}.", {"layer": default}


def _absorbed(context: FindingContext) -> Message:
    rest = f"{100 * context.facts['share']:.5g}% of it" if 0 < context.facts["share"] <= 1 else "the rest"
    return (
        f"The map sums to {context.number('total')}, but the score is {context.number('score')}. Biases and other "
        f"constants of the network absorb {rest}. The values of the map are still comparable with each other."
    )


def _incomplete(context: FindingContext) -> Message:
    facts = context.facts
    if "missing" in facts:
        text = (
            f"The map lacks {context.number('missing')} of the score {context.number('score')}. The method is only "
            "complete for networks with ReLU activations and without attention, unlike this network."
        )
        if _is_supported("gradient_shap", context.settings):
            return f"{text} Gradient SHAP supports any network.", {"method": "gradient_shap"}
        return text
    text = (
        f"The map should sum to {context.number('expected')}, the change of the score relative to the baseline, but "
        f"sums to {context.number('total')}."
    )
    if "option" in facts:
        return f"{text} Increase {facts['option']} to reduce the difference."
    return f"{text} Possible causes are rounding and parts of the network that do not depend on the image."


def _not_converged(context: FindingContext) -> Message:
    is_sum = context.settings.method.name == "layer_conductance"
    text = (
        f"The integral has not converged: the error of its {'sum' if is_sum else 'size'} {context.number('total')} is "
        f"about {context.number('error')}. Increase the steps under Options"
    )
    return f"{text}, or leave them empty." if is_sum else f"{text}."


def _search_failed(context: FindingContext) -> Message:
    other = "an equally large other part" if "other" in context.facts else "the baseline"
    value = context.number("other" if "other" in context.facts else "empty")
    return (
        f"The optimization failed: the kept part scores {context.number('score')}, not more than {other} ({value}). "
        "Increase the steps or change the baseline under Options."
    )


def _rows_depend(context: FindingContext) -> Message:
    if "layer" in context.facts:
        return (
            f"Layer {context.facts['layer']} does not run on the images of a batch in order, so each image and each of "
            "its variants ran alone, which is slower."
        )
    return (
        "The output of this network for an image depends on the other images of a batch (it changed by "
        f"{_change(context, 'mixing')} in a test), so each image and each of its variants ran alone, which is slower."
    )


def _stochastic(context: FindingContext) -> Message:
    change = f": its output changes by {_change(context, 'noise')} from pass to pass" if context.facts["noise"] else ""
    text = f"The network draws random numbers{change}. "
    if context.facts["is_repeatable"]:
        return text + "All passes used the same random numbers, so this result is one sample of the noise."
    return text + "Fixed seeds do not prevent it, so this result contains noise and is not reproducible."


def _change(context: FindingContext, fact: str) -> str:
    return f"{100 * context.facts[fact]:.2g}%"


def _text(template: str) -> Callable[[FindingContext], Message]:
    """Return a function that fills in the facts, `percent` of "share" and the `name` of the class "label"."""

    def fill(context: FindingContext) -> str:
        facts = context.facts
        words = {"percent": percent(facts["share"])} if "share" in facts else {}
        words |= {"name": context.name(facts["label"])} if "label" in facts else {}
        return template.format(**facts, **words)

    return fill


MESSAGES: dict[str, Callable[[FindingContext], Message]] = {
    "unlikely_target": _unlikely,
    "class_insensitive": _class_insensitive,
    "saturated": _saturated,
    "no_gradient": _no_gradient,
    "inactive_concept": _text("The concept is not active in this image, so the map is zero everywhere."),
    "nothing_positive": _nothing_positive,
    "flat": _flat,
    "nothing_spatial": _nothing_spatial,
    "non_finite": _non_finite,
    "unusual_size": _text(
        "The input is {given} pixels high or wide, but the network was trained at {trained}. Objects have an unusual "
        "size and may be missed."
    ),
    "bypass": _bypass,
    "lost": _text(
        "The map sums to less than 1 because {percent} of the probability was lost at units without excitatory input. "
        "Its values are still comparable with each other."
    ),
    "absorbed": _absorbed,
    "cancelled": _text(
        "Positive and negative values cancel: their sizes sum to {size:.3g}, but the score is {score:.3g}. Single "
        "values of the map are hardly evidence."
    ),
    "nonlinear_target": _text(
        "The target is not linear in the network's output, so the relevance does not start from the score, and the sum "
        "of the map has no meaning."
    ),
    "incomplete": _incomplete,
    "not_converged": _not_converged,
    "token_only_gradient": _text(
        "After layer {asked} only the class token is used, so the gradient of the patches is zero. The map uses layer "
        "{layer}, the last layer with a gradient at the patches."
    ),
    "rows_depend": _rows_depend,
    "decides_by_image": _text(
        "This network reads values of the image, so it may run other operations for other images. Its layers and "
        "positions were determined for this image, and each variant of the image ran alone, which is slower."
    ),
    "transposed": _text(
        "The map has {rows} rows and {columns} columns, but the input is {height} pixels high and {width} wide. The "
        "network may have exchanged height and width before this layer."
    ),
    "stochastic": _stochastic,
    "largest_class": _text("No class was chosen, so the map explains {name} ({percent} of the pixels)."),
    "best_detection": _text("No object was chosen, so the map explains the best detection, {name} ({score:.2f})."),
    "stopped_early": _text("The method stopped after {done:,} of {total:,} samples, so the map is less precise."),
    "shared_looks": _text(
        "To save time, only {scored:,} of {channels:,} channels were scored. The other channels use the score of the "
        "most similar one."
    ),
    "search_failed": _search_failed,
    "uniform_weights": _text(
        "All channel weights are nearly equal, so the map shows where the layer is active for any class. "
        "Weight the channels by the increase of the score instead."
    ),
    "unmoved_by_noise": _text(
        "Noise does not change the gradient at this layer, so the map equals Grad-CAM++. Choose an earlier layer to "
        "see a difference."
    ),
    "no_curvature": _text(
        "The score is linear in this layer, so there is nothing to correct and the map equals Grad-CAM. Choose an "
        "earlier layer to see a difference."
    ),
    "probability_scores": _text(
        "The scores of every image sum to 1, so they are shown as probabilities, although the operations of the "
        "network do not show it. If they are logits, set the score of the model to softmax (--score)."
    ),
    "unclear_scores": _text(
        "All scores are between 0 and 1, but the operations of the network do not show that they are probabilities, so "
        "they are treated as logits. If they are probabilities, set the score of the model to identity (--score)."
    ),
    "no_scores": _text(
        "The model returns no class scores, so the map shows what its class token, or its pooling, attended to."
    ),
    "buffers_written": _text(
        "The network writes to its buffers in every pass, as networks prepared for quantization do. Each pass started "
        "with the same buffers, and the network is unchanged."
    ),
    "no_effect": _text(
        "Occlusion did not change the score: it does not depend on these parts, or they look like the baseline. "
        "Choose another baseline under Options, or another class."
    ),
    "baseline_suffices": _text(
        "The baseline keeps the prediction, so no part of the image is needed. Choose another one under Options."
    ),
}
"""By finding code; a function raises KeyError if the finding lacks the facts."""
