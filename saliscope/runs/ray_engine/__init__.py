"""Runs on many machines: Ray Data reads and decodes batches in tasks, and explains them in actors.

Each actor loads the network once. Batches contain the same images as on one machine, so their rows are equal. Actors
write their rows, and tasks write the shards, if every machine can write to the folder of the run: a store, or a disk
that all machines share. Otherwise, rows are sent back to the machine that started the run, which writes them. Finished
batches are not computed again. Ray repeats tasks and restarts actors if a worker or a machine is lost.
"""

from saliscope.runs.ray_engine.running import run
from saliscope.runs.ray_engine.stages import Workers

__all__ = ["Workers", "run"]
