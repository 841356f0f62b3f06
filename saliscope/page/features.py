"""All handlers of the page. Importing this module imports torch, so the page is served first."""

from __future__ import annotations

from saliscope.page import events
from saliscope.page.batch import batch
from saliscope.page.channels import arithmetic, changing, channels
from saliscope.page.compare import compare
from saliscope.page.concepts import concepts
from saliscope.page.erase import erase
from saliscope.page.lab import lab
from saliscope.page.maps import maps
from saliscope.page.models import models
from saliscope.page.overlay import explain
from saliscope.page.rail import rail
from saliscope.page.ranking import ranking
from saliscope.page.share import bundle
from saliscope.page.trust import trust

FEATURES = (
    batch,
    arithmetic,
    changing,
    channels,
    compare,
    concepts,
    erase,
    lab,
    maps,
    models,
    explain,
    rail,
    ranking,
    bundle,
    trust,
)
"""The modules that register the handlers."""
respond = events.respond
