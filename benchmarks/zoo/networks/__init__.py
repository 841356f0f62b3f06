"""The networks: many families from packages, for other tasks, custom, unusual and wrapped ones, and those that decide
by the image.
"""

from collections.abc import Iterator

from benchmarks.zoo.networks.custom import own
from benchmarks.zoo.networks.deciding import deciding
from benchmarks.zoo.networks.packages import packaged
from benchmarks.zoo.networks.tasks import tasks
from benchmarks.zoo.networks.unusual import unusual
from benchmarks.zoo.networks.wrapped import wrapped
from benchmarks.zoo.subject import Network


def networks() -> Iterator[Network]:
    """Return all networks in the order of the table."""
    yield from packaged()
    yield from tasks()
    yield from own()
    yield from unusual()
    yield from wrapped()
    yield from deciding()
