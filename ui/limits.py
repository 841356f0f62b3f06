"""Limits of uploads, requests, jobs and the gradient lab; everything in ui/ reads them here.

The figures are for a machine with two cores and 16 GB (the free hosted kind); no photograph of a local user exceeds
them.
"""

import os

KB, MB = 1024, 1024 * 1024

# Whether this is a Space on ZeroGPU: network calls then run in another process.
SHARED_GPU = os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "true")

# One upload.
FILE = 32 * MB  # bytes; a 60-megapixel JPEG is about 15 MB, a 12-megapixel PNG about 25 MB
PIXELS = 64_000_000  # declared width x height; checked before anything is decoded
HUGE = 16_000_000  # pictures above this are decoded one at a time, because each takes up to 0.5 GB meanwhile
SIDE = 1536  # pixels of the shorter side after decoding; the largest crop on the page is half of it
WORK_PIXELS = 12_000_000  # pixels after decoding, which matters for panoramas only
RATIO = 20  # longer side / shorter side: resizing 60000x1 to a 256-pixel short side would need 11 GB
DECODE_SECONDS = 20.0  # files made of millions of tiny blocks take minutes to read; photographs take under two seconds
SCANS = 100  # scans of a progressive JPEG; encoders write about ten, each costs a pass over all pixels
BANDS = 512  # bands of a TIFF or NPY picture; hyperspectral cameras give about 250
BAND_VALUES = 40_000_000  # width x height x bands; as float32 they take 160 MB
PREVIEWS = 64  # PNG files of one upload, of the bands that were picked
PREVIEW_SIDE = 512  # pixels of their longer side; the page shows them 210 high
BAND_BYTES = 80 * MB  # of the same values as the file's own type; an uncompressed file is smaller anyway
PROFILE = 4 * MB  # bytes of a colour profile; larger ones are ignored

# One request. 64 kB is what a multipart envelope may add to the picture.
BODY = 1 * MB  # any request but an upload: settings are a few kB
UPLOAD = FILE + 64 * KB
AGENT = FILE * 4 // 3 + 64 * KB  # agents send pictures as base64 inside JSON
BODY_SECONDS = 120.0  # until a body has arrived
JSON_DEPTH = 32  # nesting; our own messages have six levels
JSON_ITEMS = 50_000  # values in one message
SESSION_NAME = 64  # characters of a session's name; Gradio's own have 11 or 36

# One job, and all of them.
SECONDS = 60.0  # computing time of one job; it ends with its best map so far
RANKING = (2.0, 60.0)  # seconds that a visitor may give to the ranking of methods
MANY = 100  # pictures of one report
MANY_BYTES = 256 * MB  # of the pictures of a zip, unpacked
MANY_SECONDS = 240.0  # computing time of one report
QUEUE = 32  # jobs that wait; the next visitor is told to try again
CONCURRENCY = {"model": 20, "lab": 2, "training": 1}  # jobs of a kind at once; those of "model" take turns
MEMORY = 2 * 1024 * MB  # bytes of activations in one batch of a long method; large networks get smaller batches
SESSIONS = 256  # visitors whose state Gradio keeps
UPDATES = 5  # partial results a second

# Files that visitors leave behind.
KEEP = 3600.0  # seconds that an upload stays on the disk
SWEEP = 300.0  # seconds between two sweeps

# The gradient lab: a visitor's expression, and a small network that trains on the server.
EXPRESSION_LENGTH = 400  # characters
EXPRESSION_TENSORS = 3  # named tensors with values
EXPRESSION_STEPS = 24  # operations; each is a line of code and a box of the graph
EXPRESSION_DEPTH = 16  # nested brackets, powers, signs
EXPRESSION_NUMBERS = 64  # numbers in one tensor
EXPRESSION_LARGEST = 1e12  # magnitude of a literal
TRAINING_STEPS = 500  # steps of one run
TRAINING_SECONDS = 45.0  # computing time of one run
TRAINING_LAYERS = 8  # hidden layers of the small network
TRAINING_POINTS = 120  # points of a curve; longer runs are recorded at every second, third … step
TRAINING_UPDATES = 3  # updates of the charts a second


def body(path: str) -> int:
    """The largest request body for this path.

    Returns  bytes: `UPLOAD` for uploads, `AGENT` for agents (base64 pictures), `BODY` for everything else
    """
    if path.rstrip("/").endswith("/gradio_api/upload"):
        return UPLOAD
    return AGENT if path.startswith("/gradio_api/mcp") else BODY
