"""All handlers of the page, which register themselves. Importing them imports torch, so the page is served first."""

# ruff: noqa: F401
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

respond = events.respond
