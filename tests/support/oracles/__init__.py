"""method -> oracle: for every method of the library one independent computation of the expected result.

Best first: a closed form by hand, an identity, a second slow and obvious implementation. None of them uses the library.
`test_oracles.py` runs the table and fails when a method of `explainers.METHODS` has no entry here.
"""

from . import attention, attention_relevance, cams, features, gradients, masks, responsibility, rules
from .features import drops_by_hand
from .gradients import differences
from .masks import occlusion_by_hand
from .oracle import CLASSES, Oracle
from .rules import rule_by_hand

ORACLES: dict[str, Oracle] = {
    **cams.ORACLES,
    **features.ORACLES,
    **gradients.ORACLES,
    **rules.ORACLES,
    **masks.ORACLES,
    **responsibility.ORACLES,
    **attention.ORACLES,
    **attention_relevance.ORACLES,
}

VARIANTS: dict[str, Oracle] = cams.VARIANTS | rules.VARIANTS | attention.VARIANTS
"""Other options of a method, which is the first word of the key."""

__all__ = [
    "CLASSES",
    "ORACLES",
    "VARIANTS",
    "Oracle",
    "differences",
    "drops_by_hand",
    "occlusion_by_hand",
    "rule_by_hand",
]
