"""The help texts and messages of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saliscope.compute.messages import NOT_DOWNLOADED

if TYPE_CHECKING:
    from saliscope.zoo import ModelInfo

SALISCOPE = """Visualize what an image model looks at, for one image or for a whole dataset.

\b
    saliscope explain photos/ --out run               predictions and maps of all images, as Parquet
    saliscope report run --out report.html            HTML report: mistakes, mean maps, clusters of maps
    saliscope compare run_a run_b                     changed predictions and maps of two runs
    saliscope evaluate run                            faithfulness metrics, compared with control maps
    saliscope index photos/ --out units               the images to which each channel responds most
    saliscope serve                                   interactive page for single images
"""
EXPLAIN = """Explain every image of SOURCE and write one row per image to Parquet files.

SOURCE is an image, a folder of images, a folder with one folder per class, a CSV, JSON lines or Parquet list (path,
label), a tar of images (WebDataset) or a Hugging Face dataset folder. It can be a local path or any URL that fsspec
supports. The model must be a classifier.

To resume a run that was stopped or killed, run the same command again.

\b
    saliscope explain photos/ --out run
    saliscope explain val.csv --model resnet50 --method hires_cam --target label --out run
    saliscope explain val/ --where wrong --method integrated_gradients --option steps=32 --out mistakes

Exit codes: 0 success, 1 error, 2 usage error, 3 some images could not be read, 130 interrupted, 143 terminated.
"""
REPORT = """Write an HTML report of a run, as one self-contained file.

\b
    saliscope report run --out report.html
    saliscope report run --box 0,0.8,0.2,1            also report the share of relevance in the lower left corner
"""
EVALUATE = """Evaluate a sample of the maps of a run, compared with control maps (random, image edges, centered blob).

\b
    saliscope evaluate run --images 200 --metrics deletion,insertion,road

The result is printed and saved as evaluation.json, which the report includes.
"""
COMPARE = """Compare two runs of the same images: two models, checkpoints, methods, or versions of the data.

\b
    saliscope compare run_a run_b --out compare.html

The page shows changed predictions, images that B gained and lost, tests of the accuracies, and the images whose maps
disagree most. Next to it, compare.parquet has one row per image.
"""
EXPORT = """Export a run with its images and heatmaps to FiftyOne, Hugging Face datasets or COCO.

\b
    saliscope export run --to hf --out dataset          datasets.load_dataset("dataset")
    saliscope export run --to coco --out coco           annotations.json, images/ and heatmaps/
    saliscope export run --to fiftyone --out samples
        fiftyone.Dataset.from_dir("samples", dataset_type=fiftyone.types.LegacyFiftyOneDataset)
"""
LAYERS = "List the layers of a model that have a grid, with the shape of their output. Use one of them with --layer."
MODELS = "List the models. --model also accepts timm:NAME, hf:NAME, hf:FOLDER and file.py:factory."
METHODS = "List the available methods."
REPLAY = "Recompute the maps of a saved bundle and compare them. The exit code is 0 if they are equal."
SERVE = "Start the interactive page. `python app.py` takes the same options."

VERSION = "Show the version and exit."
NETWORK = "Model"
MODEL = (
    "Model name (see: saliscope models), timm:NAME, hf:NAME, hf:FOLDER, package.module:factory or file.py:factory. "
    "auto: SALISCOPE_MODEL, or the built-in model."
)
WEIGHTS = "Weights: a .safetensors file, or a state dict saved with torch.save."
LABELS = "Class names: a text file with one name per line, or JSON."
MEAN = "Mean of pixels in [0, 1], one value per channel: 0.485,0.456,0.406."
STD = "Standard deviation, one value per channel: 0.229,0.224,0.225."
SIZE = "Input size in pixels: 224, or height x width: 160x224."
SCORE = (
    "How scores become probabilities: softmax, sigmoid (independent labels), identity (the model returns "
    "probabilities), log (their logarithms) or logit (no probabilities). Default: detected."
)
QUIET = "Print nothing but errors, and the result with --format json."
FORMAT = "Format of the result: text, or one JSON document on stdout (progress and errors are JSON lines on stderr)."
DRY_RUN = "Print what would run, how long it would take and how large the run would be, from a few measured batches."
OFFLINE = "Do not download anything."
SOURCE = "Images to explain."
OUT = "Folder of the run: a new folder, or an unfinished run to resume. Also in a store: s3://bucket/run, gs://bucket/run."
METHOD = "Method (see: saliscope methods)."
LAYER = "Name of the layer. Default: that of the method."
TARGET = (
    "Class to explain: predicted, label (if the model has this class), or the name or index of a class. For a model "
    'with a text encoder, a sentence ("a photo of a dog"), or two to compare ("a photo of a dog | a photo of a cat").'
)
OPTION = "Option of the method, such as --option samples=50. Can be repeated."
WHERE = "Only include some images: wrong (mistakes), or label=NAME."
LIMIT = "Maximum number of images, in order of path."
BATCH = "Images per forward pass."
WORKERS = (
    "Processes that decode images (0: none). Default: half of the processors, at most 4. With ray: the maximum number "
    "of workers that explain."
)
PRECISION = "float32, bf16 or auto, if the method supports it."
SEED = "Random seed."
DEVICE = "cpu, cuda, cuda:1, mps, xpu, or auto for the first accelerator of this machine."
ENGINE = "local, or ray for several machines (needs the extra ray)."
MIN_WORKERS = "With ray: workers that start at once; more start if batches wait. Default: 1."
ADDRESS = "Address of a Ray cluster. Default: start Ray on this machine."
GPUS = "With ray: GPUs per worker that explains, such as 1 or 0.5; 1 with --device cuda or xpu."
FOLDER = "A finished run: the --out folder or URL of saliscope explain."
REPORT_OUT = "HTML file to write."
EXPORT_OUT = "Folder to write, which must be new or empty."
EXPORT_TO = "Format: hf, coco or fiftyone."
NOT_A_TARGET = "{text!r} is not a format. Use hf, coco or fiftyone"
COMPARE_OUT = "HTML file to write; a Parquet file of the same name is written next to it."
MATCH = "What identifies an image in both runs: path, or sha256 for its content."
BOX = "left,top,right,bottom as fractions of the image, such as 0,0.8,0.2,1."
MASK = "A mask image (white is inside), or a folder with one mask per image that has the same name and any suffix."
LINK = "URL of the page, to open images of the report in it: http://127.0.0.1:7860."
METADATA = (
    "A CSV, JSON-lines or Parquet list with a column path and other columns, whose values are compared by accuracy. "
    "Default: the list that the run explains."
)
SAMPLE = "Number of images, randomly sampled."
METRICS = "Comma-separated metrics: deletion, insertion, road, average_drop, infidelity, mu_fidelity, sparseness …"
STEPS = "Steps of a curve."
EVALUATED = "float32, bf16 or auto."
BUNDLE = "A bundle that was saved on the page."
HOST = (
    "Address to listen on. Default: this machine only; 0.0.0.0 accepts connections from other machines, by address or "
    "name of this machine. Other names: SALISCOPE_HOSTS."
)
PORT = "Port. Default: the first free one from 7860."
MONITORING = "Also offer /healthz and /metrics (Prometheus). Do not make them public."
REQUEST_LOG = "text, or json: one object per request on stderr, without content or names of images."
NO_ADDRESS = "Do not print the address of the page."
MCP = "Also offer the endpoints as tools for agents, at /mcp (Model Context Protocol)."
RUN = "A run of saliscope explain. The links in its report open its images in this page."
UNITS = "An index of saliscope index. Everyone who opens the page sees its names and the crops of its photos."

NOT_NUMBERS = "{text!r} is not a list of numbers such as 0.485,0.456,0.406"
NOT_A_SIZE = "{text!r} is not a size. Use pixels, as in 224 or 160x224 (height x width)"
NOT_A_FILE = "{path!r} is a folder. Pass the name of a file, such as report.html."
NOT_A_BOX = "{text!r} is not a box. Use left,top,right,bottom as fractions of the image, such as 0,0.8,0.2,1."
NOT_OF_A_METHOD = "{name!r} is not an option of a method. See: saliscope methods --format json"
NOT_AN_OPTION = "{text!r} is not an option. Use name=value."

TERMINATED = "Terminated. Finished batches are kept; run the same command again to resume."

EXPLAINING, REPORTING, EVALUATING, COMPARING = "Explained", "Rendered", "Evaluated", "Compared"
EXPORTING = "Exported"
NOT_RESUMABLE = "Interrupted. Nothing was written; the same command starts again."
CACHED = "available"


def task(name: str) -> str:
    """Return a note for a model whose task runs do not support."""
    return "" if name == "classification" else f" ({name}, only on the page)"


def no_model_named(flags: list[str]) -> str:
    """Return the message for options of a model without the model."""
    needs = "needs" if len(flags) == 1 else "need"
    return f"{', '.join(flags)} {needs} --model. Name the model, for example package.module:factory or resnet18."


def model_state(info: ModelInfo) -> str:
    """Return whether a model can be used, and how large its download is."""
    if info.cached:
        return CACHED
    if info.error:
        return f"error: {info.error}"
    if info.offline:
        return NOT_DOWNLOADED
    size = f"{info.megabytes:.0f} MB " if info.megabytes else ""
    return f"{size}download" if info.fetched else "not installed"
