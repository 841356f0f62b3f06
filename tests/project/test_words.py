"""One word for one thing in the names and choices of all public functions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import explainers
from explainers.options import Option
from explainers.perturbation import baselines

OPTIONS = {
    "image": "photo picture img pic photograph",
    "images": "photos pictures batch imgs",
    "target": "category class_index class_idx label_index",
    "steps": "n_steps num_steps step_count",
    "samples": "n_samples num_samples nt_samples n draws trials",
    "seed": "random_state generator rng",
    "sigma": "noise noise_level stdev stdevs",
    "baseline": "fill filling cover reference background replacement imputation",
    "budget": "timeout time_limit max_seconds time_budget",
    "batch_size": "internal_batch_size batchsize chunk",
    "progress": "callback verbose on_progress",
    "epsilon": "eps",
    "colors": "colours colormap cmap palette tint",
    "window": "patch_size kernel_size",
    "normalize": "normalise",
    "center": "centre",
    "layer": "layer_name target_layer module",
    "method": "explainer algorithm",
}
"""Names of parameters, and words that must not be used for them."""


def parameters() -> Iterator[tuple[str, str]]:
    """Where and name of each parameter of a public function, of a method of a public class, and of an option."""
    for name in explainers.__all__:
        found = getattr(explainers, name)
        owned = vars(found) if inspect.isclass(found) else {name: found}
        for each in (each for key, each in owned.items() if key[0] != "_" or key == "__init__"):
            if inspect.isfunction(each):
                yield from ((name, parameter) for parameter in inspect.signature(each).parameters)
    yield from ((where, option.name) for where, option in options())


def options() -> Iterator[tuple[str, Option]]:
    for entries in (explainers.METHODS, explainers.METRICS):
        for name, entry in entries.items():
            yield from ((name, option) for option in entry.options.values())


def test_options_have_the_same_names_everywhere() -> None:
    words = {word: name for name, others in OPTIONS.items() for word in others.split()}
    wrong = {f"{where}({name}) instead of {words[name]!r}" for where, name in parameters() if name in words}
    assert not wrong, "\n".join(sorted(wrong))


def test_every_option_for_a_baseline_takes_the_same_names() -> None:
    found = {where: option for where, option in options() if option.name == "baseline"}
    assert len(found) > 15
    for where, option in found.items():
        assert option.choices == baselines.NAMES, where
        assert option.default in baselines.NAMES, f"{where}: the default has a name"
