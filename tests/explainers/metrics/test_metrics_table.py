"""The table of all metrics: its numbers, its stars, its rows."""

from __future__ import annotations

from benchmarks.metrics import stars


def test_a_star_requires_all_controls_and_the_better_side():
    """Twelve images: with fewer, no difference passes the sign-flip test after the correction."""
    values = {str(k): 5.0 + k % 3 for k in range(12)}
    low, high = ({photo: value - shift for photo, value in values.items()} for shift in (4.0, -4.0))
    unsure = {photo: (12.0 if k % 2 else 0.0) for k, photo in enumerate(values)}

    def starred(metric: str, *controls: dict[str, float]) -> bool:
        numbers = {"map": {metric: values}}
        numbers |= {name: {metric: each} for name, each in zip(("random", "edge", "center"), controls, strict=True)}
        return stars(numbers, ["map"], [metric]) == {("map", metric)}

    assert starred("insertion", low, low, low) and not starred("deletion", low, low, low)
    assert starred("deletion", high, high, high) and not starred("insertion", low, high, low)
    assert starred("sparseness", high, high, high) and not starred("sparseness", low, high, low)
    assert not starred("insertion", low, low, unsure), "not sure"
