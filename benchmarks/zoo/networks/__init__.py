"""The networks: members of many families from packages, custom ones, and unusual ones."""

from collections.abc import Iterator

from benchmarks.zoo.networks.custom import own
from benchmarks.zoo.networks.packages import packaged
from benchmarks.zoo.networks.unusual import unusual
from benchmarks.zoo.subject import Network


def networks() -> Iterator[Network]:
    """Return all networks in the order of the table."""
    yield from packaged()
    yield from own()
    yield from unusual()
