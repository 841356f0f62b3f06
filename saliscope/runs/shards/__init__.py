"""The files of a run: Parquet shards and a manifest, in a local folder or in any store that fsspec opens.

    settings.json                  the format and the settings that the rows depend on, written first
    work/lock                      local folders: locked by the process that writes
    work/lease/000001.json         stores: the process that writes, see `locks`
    work/000000-0000.arrow         batches of an incomplete shard
    part-00000.parquet …           shards, rows in order of path
    work/commits/00000.json        counts of a shard, written after the shard
    manifest.json                  settings, versions, hash of the weights, counts, names of the shards

`writing` writes a run, `saliscope.runs.rows` opens a finished one.
"""

from saliscope.runs.rows import RunData, open_run, read_manifest
from saliscope.runs.shards.writing import Shards
from saliscope.runs.stores import refuse_disk_errors

__all__ = ["RunData", "Shards", "open_run", "read_manifest", "refuse_disk_errors"]
