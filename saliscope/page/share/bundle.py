"""The part of a bundle that only the server has: the image without metadata, hashes and versions."""

from __future__ import annotations

from collections.abc import Iterator

from saliscope.compute import engine, messages
from saliscope.compute.bundles import bundle
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.places import places
from saliscope.compute.request import from_form, second_image
from saliscope.images import uploads
from saliscope.page.events import Ask, on
from saliscope.page.share import parts
from saliscope.page.wire import Updates


@on(parts.BUNDLE, "submit")
def answer(ask: Ask) -> Iterator[Updates]:
    """Return the part that share/bundle.js requested under this number, or an error."""
    number = ask.data.get("number")
    try:
        with runs.start(ask.job("bundle")) as run:
            for _ in places.wait(run, "lab") if run else ():
                pass
            second = second_image(ask.data.get("second"))
            image = from_form({"image": ask.form.get("image")}).image
            part = bundle.server_part(ask.data.get("records"), image, uploads.upload_folder(), second)
            yield {parts.BUNDLE: {"number": number, "part": part}}
    except Exception as error:
        yield {parts.BUNDLE: {"number": number, "refused": engine.message_of(error, messages.UNKNOWN)}}
