"""The parts of the ranking of methods."""

from __future__ import annotations

from saliscope import limits
from saliscope.compute.ranking import messages as ranking_messages
from saliscope.page.elements import Part

RANKING = Part(
    "ranking/ranking",
    "hl-ranking",
    terms=ranking_messages.TERMS,
    form={"low": limits.RANKING[0], "high": limits.RANKING[1], "seconds": limits.RANKING_SECONDS},
)
