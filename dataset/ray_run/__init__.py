"""Many machines: Ray Data reads and decodes batches in tasks, and explains them in actors that hold the network once.

A batch has the pictures that it has on one machine, so its rows are equal. Rows return to the machine that asked, which
writes them as they come: workers share no disk with it but that of the pictures, and what is there already is not asked
for again. Ray repeats tasks and begins actors again when a worker or a machine is lost.
"""

from dataset.ray_run.running import run
from dataset.ray_run.task import Workers

__all__ = ["Workers", "run"]
