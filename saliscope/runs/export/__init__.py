"""Export a run to the formats of other tools: FiftyOne, Hugging Face datasets, and COCO.

`exporting` reads the rows and images, `record` has an image with its heatmap, and each format has its own file.
"""

from saliscope.runs.export.exporting import FORMATS, export

__all__ = ["FORMATS", "export"]
