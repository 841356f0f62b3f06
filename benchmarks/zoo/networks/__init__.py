"""The networks: many families from packages, for other tasks, custom and unusual ones."""

from collections.abc import Iterator

from benchmarks.zoo.networks.custom import own
from benchmarks.zoo.networks.packages import packaged
from benchmarks.zoo.networks.tasks import tasks
from benchmarks.zoo.networks.unusual import unusual
from benchmarks.zoo.subject import Network


def networks() -> Iterator[Network]:
    """Return all networks in the order of the table."""
    for group in (packaged, tasks, own, unusual):
        yield from group()
