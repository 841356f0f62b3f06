"""What the command line says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset.settings import LABEL, WRONG
from hooklens.progress import duration

if TYPE_CHECKING:
    from dataset.run import Summary
    from dataset.settings import Settings

HOOKLENS = """See what an image network looked at, in one photograph or in a million.

\b
    hooklens explain photographs/ --out run          every picture's prediction and map, as Parquet
    hooklens report run --out report.html            one page: mistakes, mean maps, clusters of maps
    hooklens evaluate run                            can the maps be believed? metrics beside controls
    hooklens serve                                   the page, for one photograph at a time
"""
EXPLAIN = """Explain every picture of SOURCE: one row a picture, in Parquet files.

SOURCE is a folder of pictures, a folder of folders named by class, a CSV, JSON lines or Parquet list (path, label), a
tar of pictures (WebDataset), a Hugging Face dataset folder, or one picture; on this machine, or anywhere fsspec opens.
The network is a classifier.

A run that was stopped or killed goes on with the same command.

\b
    hooklens explain photographs/ --out run
    hooklens explain val.csv --model resnet50 --method hires_cam --target label --out run
    hooklens explain val/ --where wrong --method integrated_gradients --option steps=32 --out mistakes

Exit codes: 0 done, 1 refused, 2 wrong use, 3 done but some pictures could not be read, 130 stopped.
"""
REPORT = """Write a report of a run: one self-contained page.

\b
    hooklens report run --out report.html
    hooklens report run --box 0,0.8,0.2,1            with the share of relevance in the lower left corner
"""
EVALUATE = """Measure a sample of a run's maps beside random maps, the pictures' edges and a centred blob.

\b
    hooklens evaluate run --pictures 200 --metrics deletion,insertion,road

The result is printed and kept as evaluation.json, which the report shows.
"""
MODELS = "List the networks that can be named by --model; besides: timm:NAME, hf:NAME, hf:FOLDER, file.py:factory."
METHODS = "List the methods that can be named by --method."
REPLAY = "Compute a map that was saved as a bundle again, and compare. Exit code 0 where it is equal."
SERVE = "Serve the page, as python app.py does."

VERSION = "print the version"
NETWORK = "Network"
MODEL = (
    "efficientnet_lite0, resnet50 …, timm:NAME, hf:NAME or hf:FOLDER, package.module:factory or file.py:factory; auto: "
    "HOOKLENS_MODEL, else the one on board"
)
WEIGHTS = "its weights: .safetensors, or a state dict of torch.save"
LABELS = "its class names: a text file, one a line, or JSON"
MEAN, STD = "mean of pixels in [0, 1], one a channel: 0.485,0.456,0.406", "standard deviation, likewise"
SIZE = "pixels of its input: 224, or height x width: 160x224"
OFFLINE = "never fetch anything"
SOURCE, OUT = "pictures to explain", "folder of the run: a new one, or one to go on with"
METHOD, LAYER = "see: hooklens methods", "name of a layer (default: the method's own)"
TARGET = "class to explain: predicted, label (where the network has it), or a class by name or number"
OPTION = "an option of the method: --option samples=50"
WHERE = "only these pictures: wrong, or label=NAME"
LIMIT = "look at so many pictures at most, the first by path"
BATCH = "pictures in a forward pass"
WORKERS = "processes that decode (default: half of the processors; 0: none); with ray those that explain, at most"
PRECISION = "float32, bf16 or auto, where the method has it"
SEED, DEVICE = "of everything that is drawn", "cpu, cuda, cuda:1 …"
ENGINE, ADDRESS = "local, or ray (extra: ray) for many machines", "of a Ray cluster (default: one on this machine)"
GPUS = "of Ray: GPUs of each process that explains: 1, or a part such as 0.5"
FOLDER = "a finished run: the --out of hooklens explain"
REPORT_OUT = "the page"
BOX = "left,top,right,bottom in parts of the picture, such as 0,0.8,0.2,1"
MASK = "a picture, white inside; or a folder with one for each picture, of the same name (whatever its suffix)"
NO_MASK = "{path!r} is no mask: it is no picture that can be read. Give a picture, white inside."
NO_MASKS = "No picture of the run has a mask in {path!r}. Masks have the picture's name, whatever their suffix."
NO_PAGE = "{path!r} is a folder. Give the name of the page, such as report.html."
NO_LINK = "{text!r} is no address. Give one with http:// or https://, such as http://127.0.0.1:7860."
DEVICE_OF_RAY = "it is for the local engine. With ray, give --gpus 1."
OF_RAY = "it is for --engine ray."
ENDED = "Stopped. Nothing was written; the same command begins anew."
LINK = "address of the page, to open pictures there: http://127.0.0.1:7860"
SAMPLE = "pictures, drawn at random"
METRICS = "with commas between: deletion, insertion, road, average_drop, infidelity, mu_fidelity, sparseness …"
STEPS, EVALUATED = "of a curve", "float32, bf16 or auto"
BUNDLE = "a bundle that was saved on the page"

EXPLAINING, REPORTING, EVALUATING = "explained", "drawn", "measured"
NO_ENGINE = "{engine!r} is no engine. Give local or ray."
NO_OPTION = "{text!r} is no option. Give name=value."
NO_BOX = "{text!r} is no box. Give left,top,right,bottom in parts of the picture, such as 0,0.8,0.2,1."
HERE = "here"


def task(name: str) -> str:
    """What a network is for, where runs do not take it."""
    return "" if name == "classification" else f", for {name}: on the page alone"


def megabytes(size: float) -> str:
    """The size of a download."""
    return f"{size:.0f} MB to fetch"


def _pictures(count: int) -> str:
    return "1 picture" if count == 1 else f"{count:,} pictures"


def explained(done: Summary, settings: Settings) -> str:
    """The end of a run."""
    counts = done.counts
    lines = [f"{_pictures(counts['pictures'])} in {str(done.folder)!r}"]
    if settings.where == WRONG:
        wrong = _pictures(counts["pictures"] - counts["unreadable"])
        lines[0] = f"{wrong} predicted wrong, of {counts['looked_at']:,}, in {str(done.folder)!r}"
    if done.new:
        speed = f", {done.new / done.seconds:.3g} a second" if done.seconds > 0 else ""
        what = "looked at" if settings.where == WRONG else "new"
        lines[0] += f": {done.new:,} {what} in {duration(done.seconds)}{speed}."
    else:
        lines[0] += ": all were there before."
    if counts["labelled"]:
        share = counts["correct"] / counts["labelled"]
        lines.append(f"{share:.1%} of {counts['labelled']:,} labelled pictures are predicted right.")
    unlabelled = counts["looked_at"] - counts["labelled"] - counts["unreadable"]
    if settings.target == LABEL and unlabelled:
        lines.append(
            f"{_pictures(unlabelled)} without a label that the network knows: the predicted class is explained."
        )
    if counts["unreadable"]:
        lines.append(f"{counts['unreadable']:,} could not be read; the column error says why.")
    return "\n".join(lines)


def reported(path: Path, gone: int) -> str:
    """The end of a report; `gone` photographs are not there any more."""
    line = f"{str(path)!r}: {path.stat().st_size / 1e6:.1f} MB. Open it in a browser."
    if not gone:
        return line
    return f"{line}\n{_pictures(gone)} of the run {'is' if gone == 1 else 'are'} not there any more: maps stand alone."


def evaluated(found: dict[str, Any], folder: Path) -> str:
    """The sentences of the metrics."""
    lines = [each["sentence"] for each in found["metrics"].values()]
    return "\n".join([*lines, f"Of {_pictures(found['pictures'])}; kept in {str(folder / 'evaluation.json')!r}."])
