"""One word for one thing in the names and choices of all public functions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

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


def public() -> Iterator[tuple[str, Any]]:
    """Public objects by name, and the public methods of public classes."""
    for name in sorted(set(explainers.__all__) - {"MethodName"}):  # which is an alias of types
        found = getattr(explainers, name)
        yield name, found
        if inspect.isclass(found):
            for own, member in vars(found).items():
                if not own.startswith("_") and callable(member):
                    yield f"{name}.{own}", member


def parameters() -> Iterator[tuple[str, str]]:
    """Where and name of each parameter of a public function or class, and of each option of a metric."""
    for where, found in public():
        if callable(found):
            try:
                names = list(inspect.signature(found).parameters)
            except ValueError:
                continue
            yield from ((where, name) for name in names if not name.startswith("_"))
    for metric in explainers.METRICS.values():
        yield from ((metric.name, name) for name in metric.options)


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
