"""What is said about kept and shared things."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ui.words import short

if TYPE_CHECKING:
    from ui.engine.messages import Settings

GONE = (
    "The picture of this address was a visitor's own, and this browser does not have it any more. Choose it again or "
    "click an example; the other settings are as they were."
)

NOT_HERE = (
    "The picture of this link is not here. Choose its file, or start the page with its run (--run FOLDER); the other "
    "settings are those of the link."
)

NO_QUESTION = "The file does not say which map is meant."
NOT_SHOWN = "The picture on the page is not the one of this map any more. Press Explain and save again."
TRAVELS = {
    True: "The file that was given, without metadata (place, time, camera, comments); its pixels are unchanged.",
    False: "The pixels of the file that was given, written anew: its format holds metadata that cannot be cut out.",
}

# Replaying a bundle

NO_BUNDLE = (
    "This is no bundle of Hooklens, or it was changed: its files or its bundle.json are not as the page writes them."
)
DAMAGED = "The zip archive is damaged or incomplete. Download the bundle again."
TOO_LARGE = "A file in the zip archive is larger than any of a bundle, so nothing of it was read."
OTHER_VERSION = "The bundle was made by a later version of Hooklens. Update Hooklens to replay it."
STOPPED = (
    "This map was stopped before its end. What it shows depends on the time that it had, so it cannot be recomputed."
)
NOTHING = "Nothing is found in the photograph of the bundle, so there is no map to compare."
CHANGED = "Map         not the one that was saved: its hash is another"
FAILED = "The bundle could not be replayed because of an internal error; the log has details."


def no_file(path: str) -> str:
    """When there is no such file."""
    return f"There is no file “{short(path, 200)}”."


def photograph(agrees: bool) -> str:
    """Whether the photograph is the one of the bundle."""
    return f"Photograph  {'agrees with its hash' if agrees else 'is not the one that was explained: its hash differs'}"


def heading(name: str, settings: Settings, question: Any) -> str:
    """What is recomputed."""
    whom = f" for {short(str(question.get('class')))}" if settings.method.reads_class else ""
    place = f" at {settings.layer}" if settings.takes_layer else ""
    text = f"{settings.method.title}{whom}{place} of {settings.loaded.title}"
    return f"\n{short(name)}: {text}" if name else f"Recomputing {text}"


def weights(agree: bool, title: str) -> str:
    """Whether the network is the same."""
    return f"Weights     {'agree with their hash' if agree else f'of {title} here are others: their hash differs'}"


def shapes(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """When the maps have different sizes."""
    kept, now = (" x ".join(map(str, shape)) for shape in (one, other))
    return f"Map         {kept} in the bundle, {now} now: different"


def difference(largest: float, size: float, equal: bool, exact: bool) -> str:
    """How the maps compare."""
    verdict = "equal, bit by bit" if exact else "equal within rounding" if equal else "different"
    return f"Map         largest difference {largest:.3g}, of values up to {size:.3g}: {verdict}"


def versions(then: dict[str, str], now: dict[str, str]) -> str:
    """What else differs; empty where nothing does."""
    changed = [
        f"{name} {short(value)} then, {now.get(name, 'none')} now"
        for name, value in then.items()
        if now.get(name) != value
    ]
    return f"Versions    {'; '.join(changed)}" if changed else ""


def no_option(method: str, unknown: list[str], near: list[str], known: list[str]) -> str:
    """When a link or a program gives options that the method does not have."""
    named = ", ".join(f"“{short(name)}”" for name in unknown[:3]) + (" and more" if len(unknown) > 3 else "")
    plural = "options" if len(unknown) > 1 else "option"
    hint = f" Did you mean {near[0]}?" if near else ""
    has = f"It has {', '.join(known)}." if known else "It has none."
    return f"{method} has no {plural} {named}.{hint} {has}"
