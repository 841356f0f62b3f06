"""Runs: explain every image of a folder, list, tar or Hugging Face dataset, and write the results as Parquet.

    from saliscope import runs
    run = runs.explain("photos/", "run", method="grad_cam")      # or runs.open("run"), if it is finished
    run.report("report.html")
    run.evaluate(images=200)
    run.compare(runs.open("other"), "compare.html")
    run.export("hf", "dataset")
    runs.index("photos/", "units", layers=["layer4"])             # the images to which each channel responds most

`sources` list images; `run` decodes and explains them on one machine and takes the results of `ray_engine`, which does
it on several; `report` writes an HTML report. This package does not depend on the page. Maps are computed by
`explainers`, networks come from `saliscope.zoo`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saliscope import install

if TYPE_CHECKING:
    from saliscope.runs.api import Run, explain, index, open
    from saliscope.runs.results import ComparisonResult, EvaluationResult, ExportResult, IndexResult, ReportResult

__all__ = [
    "ComparisonResult", "EvaluationResult", "ExportResult", "IndexResult", "ReportResult",
    "Run", "explain", "index", "open",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: `import saliscope.runs` imports neither torch nor pyarrow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from saliscope.runs import api, results  # torch takes seconds to start
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        needed = f"saliscope.runs.{name} needs the package {package}, which is not installed."
        raise ImportError(f"{needed} {install.hint('data')}.") from error
    return getattr(results if name.endswith("Result") else api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
