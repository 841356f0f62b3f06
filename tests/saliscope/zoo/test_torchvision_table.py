"""The list of torchvision's models, which is read from a table, equals what torchvision says.

`python -m tests.saliscope.zoo.test_torchvision_table` writes the table again. Titles are written by hand: a new network
has its name as title.
"""

from __future__ import annotations

import csv
import io

import torchvision

from saliscope.zoo.sources import torchvision_networks as networks
from saliscope.zoo.sources.torchvision_models import TABLE

VERSION = "0.29."
"""The torchvision that wrote the table."""
MEASURES = {"acc@1": "top-1", "miou": "mIoU", "box_map": "box mAP"}
"""torchvision's names of the published metrics, and the names shown here."""


def expected() -> str:
    """Return the table from the metadata of torchvision's weights, with the titles of the written one."""
    with TABLE.open(encoding="utf-8", newline="") as written:
        titles = {row["name"]: row["title"] for row in csv.DictReader(written)}
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["name", "title", "task", "weights", "classes", "bytes", "side", "accuracy", "measure", "url"])
    for name, weights in networks.weights_by_name().items():
        metrics = next(iter(weights.meta["_metrics"].values()))
        measure = next(each for each in MEASURES if each in metrics)
        size = round(weights.meta["_file_size"] * 2**20)  # torchvision's table has MiB
        count, side = len(weights.meta["categories"]), networks.preparation_of(name).size[0]
        shown = metrics[measure], MEASURES[measure]
        named = name, titles.get(name, name), networks.task_of(name), weights.name
        table.writerow([*named, count, size, side, *shown, weights.url])
    return file.getvalue()


def test_table_is_torchvisions() -> None:
    """Other versions of torchvision may have more or fewer models, but not other weights under the same name."""
    written, found = TABLE.read_text(encoding="utf-8"), expected()
    if torchvision.__version__.startswith(VERSION):
        assert found == written, "run `python -m tests.saliscope.zoo.test_torchvision_table`"
    urls, known = ({row["name"]: row["url"] for row in csv.DictReader(io.StringIO(text))} for text in (found, written))
    assert {**known, **urls} == {**urls, **known} and len(urls.keys() & known.keys()) > 120


if __name__ == "__main__":
    TABLE.write_text(expected(), encoding="utf-8")
