"""Findings as the page says them: classes and layers by name, what it means, and what to do, with a button for it.

The library says a finding in its callers' terms and gives its figures as `facts`; here they become a visitor's. What
has no words here (a finding of a method that was added) is said as the library says it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ui import words as page_words
from ui.engine import model_cache

if TYPE_CHECKING:
    import explainers
    from explainers.findings import Finding
    from ui.engine.messages import Answer, Settings

INSTEAD = {
    "saliency": "smooth_grad_squared",
    "smooth_grad": "smooth_grad_squared",
    "input_x_gradient": "gradient_shap",
    "integrated_gradients": "gradient_shap",
    "blur_integrated_gradients": "gradient_shap",
    "deep_lift": "deep_lift_shap",
    "deconvnet": "guided_grad_cam",
    "eigen_cam": "grad_cam",
    "kpca_cam": "grad_cam",
    "token_pca": "grad_cam",
}
"""What the caution of a method recommends."""


@dataclass(frozen=True)
class About:
    """What a finding is about: the answer's settings, its class or thing, its layer, the figures, the remedy."""

    settings: Settings
    whom: str
    layer: str
    facts: dict[str, Any]
    remedy: dict[str, Any]

    def name(self, index: Any) -> str:
        """A class's name."""
        return self.settings.loaded.name_of(int(index))

    def number(self, fact: str) -> str:
        """A figure in few digits."""
        return f"{self.facts[fact]:.3g}"

    @property
    def where(self) -> str:
        """The layer by name, or the picture."""
        return f"layer {self.layer}" if self.layer else "the picture"

    @property
    def earlier(self) -> str:
        """The earlier layer of the remedy; empty where there is none."""
        return str(self.remedy.get("layer", ""))


Said = str | tuple[str, dict[str, Any]]
"""A sentence, and the remedy where it is not the library's."""


def said(finding: Finding, step: Answer) -> dict[str, Any]:
    """A finding as `static/panel/findings.js` draws it."""
    settings, layer = step.settings, step.explanation.layer or ""
    about = About(settings, step.name, layer, finding.facts, finding.remedy)
    sentence: Said = page_words.plain(finding.sentence)
    if finding.code in SENTENCES:
        # A finding of another's method may have one of these codes, with other figures or none.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            sentence = SENTENCES[finding.code](about)
    sentence, remedy = (sentence, finding.remedy) if isinstance(sentence, str) else sentence
    return item(sentence, remedy, settings)


def caution(settings: Settings) -> list[dict[str, Any]]:
    """The caution of the method, with a button for the method that it recommends."""
    method = settings.method
    if not method.caution:
        return []
    instead = INSTEAD.get(method.name, "")
    return [item(method.caution, {"method": instead} if _fits(instead, settings) else {}, settings)]


def item(sentence: str, remedy: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A sentence and its button: only with what a click can change, classes by name."""
    remedy = {name: _named(name, value, settings) for name, value in remedy.items()}
    remedy = {name: value for name, value in remedy.items() if value is not None}
    return {"sentence": sentence, **({"remedy": remedy, "label": label(remedy)} if remedy else {})}


def label(remedy: dict[str, Any]) -> str:
    """What the button says."""
    (name, value), *_ = remedy.items()
    if name == "target":
        return f"Explain {page_words.short(value)}"
    if name == "method":
        return f"Use {_method(value).title}"
    if name == "channels":
        return f"Try all {value:,} channels"
    if (name, value) == ("weights", "increase"):
        return "Weigh by the increase of the score"
    return page_words.remedy(remedy)


def _named(name: str, value: Any, settings: Settings) -> Any:
    """A value of a remedy as the page's settings hold it; None for what they cannot."""
    if name == "target":
        return settings.loaded.name_of(value) if isinstance(value, int) else None
    return value if isinstance(value, (bool, int, float, str)) else None


def _method(name: str) -> explainers.Method:
    import explainers  # torch takes seconds to start

    return explainers.METHODS[name]


def _fits(name: str, settings: Settings) -> bool:
    return bool(name) and model_cache.why_not(_method(name), settings.loaded, settings.layer) is None


def percent(share: float) -> str:
    """A probability as the page writes it."""
    return f"{100 * share:.0f}%" if share >= 0.01 else "under 1%"


# One function a code


def _unlikely(about: About) -> Said:
    facts = about.facts
    target, top = about.name(facts["target"]), about.name(facts["top"])
    return (
        f"The network sees {top} here ({percent(facts['top_share'])}). {target} comes as number {facts['rank']:,} of "
        f"its {facts['of']:,} classes, with {percent(facts['share'])}: the map shows what would speak for {target}, "
        "not that there is one."
    )


def _class_insensitive(about: About) -> Said:
    other, settings = about.name(about.facts["runner_up"]), about.settings
    sentence = (
        f"The map for {other} looks nearly the same (rank correlation {about.facts['correlation']:.2f}): it shows what "
        f"is there, not why it is {about.whom} rather than {other}."
    )
    if settings.method.name != "finer_cam" and _fits("finer_cam", settings):
        return f"{sentence} Finer-CAM shows what tells them apart.", {"method": "finer_cam"}
    return f"{sentence} The tab Compare shows both side by side."


def _saturated(about: About) -> Said:
    remedy = {"score": "logit"} if "score" in about.settings.method.options else {}
    return (
        f"The probability is saturated ({about.number('probability')}): it hardly changes any more, and its gradient "
        "nearly vanishes. Explain the score before softmax, the logit."
    ), remedy


def _no_gradient(about: About) -> Said:
    if about.facts.get("anywhere"):
        return "No part that was tried changes the score, so that none is better than another. Choose another class."
    return f"The score of {about.whom} does not depend on {about.where}: its gradient there is exactly zero. " + (
        f"The earlier layer {about.earlier} may show more." if about.earlier else "Choose another class or layer."
    )


def _nothing_positive(about: About) -> Said:
    blank = about.facts["blank"]
    if not about.settings.method.reads_class:
        return "All values are 0 or below" + (", and the map shows only what is above." if blank else ".")
    sentence = f"Nothing at {about.where} speaks for {about.whom}: all values are 0 or below"
    if blank:
        return sentence + ", and the map shows only what is above. Its signs show what speaks against it."
    return sentence + "; the map shows what speaks against it."


def _flat(about: About) -> Said:
    value = about.facts["value"]
    sentence = f"The map is {'zero' if value == 0 else about.number('value')} everywhere: no place stands out. "
    if about.earlier:
        return sentence + f"The earlier layer {about.earlier} has more cells."
    return sentence + (
        "Choose another class or layer." if about.settings.method.reads_class else "Choose another layer."
    )


def _nothing_spatial(about: About) -> Said:
    return f"Layer {about.layer} is a single cell for the whole picture, so that the map points nowhere. " + (
        f"The earlier layer {about.earlier} has a grid." if about.earlier else "Choose an earlier layer."
    )


def _non_finite(about: About) -> Said:
    first = {
        "layer": f"Layer {about.facts['layer']} gives numbers that are not finite (NaN or ∞)",
        "scores": "The network's own scores are not finite (NaN or ∞)",
        "gradient": "The gradient is not finite (NaN or ∞)",
        "map": "The map holds numbers that are not finite (NaN or ∞)",
    }[about.facts["part"]]
    precise = ", or float32 as precision under Options" if "precision" in about.settings.method.options else ""
    return f"{first}, so that no map can be trusted. Try another picture{precise}; else the weights are broken."


def _unusual_size(about: About) -> Said:
    return (
        f"The network sees the picture {about.facts['given']} pixels high or wide, and was trained at "
        f"{about.facts['trained']}: things have another size than it knows, and it may miss them."
    )


def _bypass(about: About) -> Said:
    layer, default = about.facts["layer"], about.settings.loaded.default
    share = f"{about.facts['share']:.0%} of the gradient" if "share" in about.facts else "what does so"
    sentence = f"Part of the network goes around layer {layer}: {share} is not in this map."
    if layer == default:
        return sentence + " Other layers may miss other parts."
    return f"{sentence} More paths pass layer {default}.", {"layer": default}


def _lost(about: About) -> Said:
    return (
        f"Of the probability, {percent(about.facts['share'])} ended inside the network, where nothing excites a unit: "
        "the map sums to less than 1. Its parts still compare."
    )


def _absorbed(about: About) -> Said:
    return (
        f"The map sums to {about.number('total')}, the score is {about.number('score')}: constants of the network "
        "(biases) keep the rest. The map's parts still compare with each other."
    )


def _incomplete(about: About) -> Said:
    facts = about.facts
    if "missing" in facts:
        sentence = (
            f"The map lacks {about.number('missing')} of the score {about.number('score')}: the method is complete "
            "where all activations are ReLUs and nothing is attention, and this network has others."
        )
        if _fits("gradient_shap", about.settings):
            return f"{sentence} Gradient SHAP is for any network.", {"method": "gradient_shap"}
        return sentence
    sentence = (
        f"The map should sum to {about.number('expected')}, the change of the score from the comparison picture, and "
        f"sums to {about.number('total')}."
    )
    if "option" in facts:
        return f"{sentence} More {facts['option']} bring them closer."
    return f"{sentence} Rounding, or a part of the network that the picture does not reach, is why."


def _token_only(about: About) -> Said:
    return (
        f"Behind layer {about.facts['asked']} only the class token is read, so that the picture's patches count for "
        f"nothing there. The map is that of layer {about.facts['layer']}, the last one where they count."
    )


def _shared_looks(about: About) -> Said:
    return (
        f"To save time, {about.facts['scored']:,} of {about.facts['channels']:,} channels were tried; every other one "
        "has the score of the one most like it."
    )


def _search_failed(about: About) -> Said:
    return (
        f"The search failed: the part that it kept scores {about.number('score')}, no more than the covered picture "
        f"alone ({about.number('empty')}). Take more steps, or another baseline, under Options."
    )


def _fixed(sentence: str) -> Callable[[About], Said]:
    return lambda about: sentence


SENTENCES: dict[str, Callable[[About], Said]] = {
    "unlikely_target": _unlikely,
    "class_insensitive": _class_insensitive,
    "saturated": _saturated,
    "no_gradient": _no_gradient,
    "nothing_positive": _nothing_positive,
    "flat": _flat,
    "nothing_spatial": _nothing_spatial,
    "non_finite": _non_finite,
    "unusual_size": _unusual_size,
    "bypass": _bypass,
    "lost": _lost,
    "absorbed": _absorbed,
    "incomplete": _incomplete,
    "token_only_gradient": _token_only,
    "shared_looks": _shared_looks,
    "search_failed": _search_failed,
    "uniform_weights": _fixed(
        "All channels weigh nearly the same, so that the map shows where the layer is active, whatever the class. "
        "Weights by the increase of the score set them apart."
    ),
    "unmoved_by_noise": _fixed(
        "Noise does not change the gradient at this layer, so that the map is that of Grad-CAM++. Choose an earlier "
        "layer to see a difference."
    ),
    "no_curvature": _fixed(
        "The score is a straight line in this layer: there is nothing to correct, and the map is Grad-CAM's. Choose an "
        "earlier layer to see a difference."
    ),
    "no_effect": _fixed(
        "The score did not change, whatever was covered: it does not depend on these parts, or they look like their "
        "cover. Choose another baseline under Options, or another class."
    ),
}
"""By code; each may fail with a KeyError where the finding lacks the figures."""
