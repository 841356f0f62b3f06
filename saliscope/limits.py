"""Limits of uploads, requests, jobs and the gradient lab, shared by the page and `saliscope.compute`.

The values are chosen for a machine with two cores and 16 GB of memory (a free hosted machine). Ordinary photos of a
local user do not exceed them.
"""

import os

KB, MB = 1024, 1024 * 1024

# True on a Hugging Face Space with ZeroGPU, where network calls run in another process.
SHARED_GPU = os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "true")

# One upload.
FILE = 32 * MB  # bytes; a 60-megapixel JPEG is about 15 MB, a 12-megapixel PNG about 25 MB
PIXELS = 200_000_000  # declared width x height; checked before anything is decoded
WHOLE = 64_000_000  # pixels in four bytes that are decoded as a whole, in 0.5 GB with conversions; others in strips
WEBP = 48_000_000  # pixels of a WebP, whose decoder has two more images in memory; 0.9 GB
COEFFICIENTS = 6 * WHOLE  # bytes of the coefficients of a JPEG with several scans
HUGE = 16_000_000  # pixels; larger images are decoded one at a time because each needs up to 0.5 GB
SIDE = 1536  # pixels of the shorter side after decoding; the largest crop on the page has half of that
WORK_PIXELS = 12_000_000  # pixels after decoding; only panoramas reach this limit
RATIO = 20  # longer side / shorter side: resizing 60000x1 to a 256-pixel short side would need 11 GB
DECODERS = 2  # processes that decode images; each may use DECODE_MEMORY
DECODE_MEMORY = 1024 * MB  # bytes of such a process, with its libraries
DECODE_SECONDS = 20.0  # files with millions of tiny blocks take minutes to read; photos take less than two seconds
SCANS = 100  # scans of a progressive JPEG; encoders write about ten, and each costs a pass over all pixels
PROFILES = 10  # color profiles in a PNG that is refused; it has one, and each is decompressed
PARTS = 5_000  # segments of a JPEG or blocks of a GIF before the pixels, chunks of a PNG; a profile has at most 255
RAW = 300_000_000  # bytes of the pixels of a PNG or TIFF that expands more than EXPANSION times
EXPANSION = 100
RUNS = 1 * MB  # bytes of a BMP with runs of pixels, which Pillow decodes in Python
BANDS = 512  # bands of a TIFF or NPY image; hyperspectral cameras have about 250
BAND_VALUES = 40_000_000  # width x height x bands; 160 MB as float32
PREVIEW_SIDE = 512  # pixels of the longer side of a preview; the page shows it at a height of 210
BAND_BYTES = 80 * MB  # bytes of the same values in the data type of the file
PROFILE = 4 * MB  # bytes of a color profile; larger ones are ignored

# One request. A multipart envelope adds at most 64 kB to the image.
HEADERS = 32 * KB  # of a request; browsers send about 1 kB
HEAD_SECONDS = 10.0  # time for the first line and the headers, from the start of a connection or the last answer on it
TINY_CHUNKS = 1_000  # of less than 256 bytes, in the body of a request
CONNECTIONS = 1_500  # of one address, which may be a school; a browser opens six
BODY = 1 * MB  # any request except an upload; settings take a few kB
UPLOAD = FILE + 64 * KB
AGENT = FILE * 4 // 3 + 64 * KB  # agents send images as base64 in JSON
BODY_SECONDS = 120.0  # time limit for receiving a body
BODY_PAUSE = 10.0  # seconds of waiting after which a body ends that has brought less than BODY_STEP
BODY_STEP = 16 * KB
BODY_WAIT = 60.0  # seconds that a body waits, unread, until others have ended
WAITING_BODIES = 256  # bodies of one address that wait, unread, such as those of a school
SEND_SECONDS = 30.0  # time in which a client must read the next 64 kB of an event stream
STREAMS = 400  # open event streams of one address; a page has one
RATE, BURST = 30.0, 600.0  # requests of one address in a second, and at once; a file of the page counts 0.1
PAGE_COST = 3.0  # of the page itself, which the server creates for each request
SESSION_COST = 5.0  # of the first event of a session, for which Gradio creates the state of all components
WAITING_REQUESTS = 256  # requests of one address that wait because they came too fast
DISCARD_SECONDS = 10.0  # time in which the rest of a refused body is received and forgotten
BODIES = {  # bodies at the same time in all and of one address, and their bytes in all and of one address
    "json": (512, 256, 32 * MB, 16 * MB),
    "agents": (32, 8, 3 * AGENT, AGENT),
    "uploads": (32, 8, 12 * UPLOAD, 4 * UPLOAD),
}
UPLOAD_PARTS = 128  # files in one upload; a report has at most BATCH images
JSON_DEPTH = 32  # nesting; messages of the page have six levels
JSON_ITEMS = 50_000  # values in one message
JSON_DELIMITERS = 4 * JSON_ITEMS  # commas, colons and opening brackets, also in texts; counted before parsing
PARSED_HERE = 64 * KB  # bytes of JSON that the event loop parses itself; longer texts are parsed in a thread
SESSION_NAME = 64  # characters of a session name; Gradio uses 11 or 36

# Jobs.
SECONDS = 60.0  # compute time of one job, which then returns its best map so far
RANKING = (2.0, 60.0)  # range in seconds of the time limit of a ranking
RANKING_SECONDS = 10.0  # the default
PANELS = 4  # of a comparison
BATCH = 100  # images in one report
BATCH_BYTES = 256 * MB  # size of all images of one report, after archives are unpacked
BATCH_LISTING = 1 * MB  # bytes that list the files of an archive, of about 100 each; Python keeps ten times as many
BATCH_SECONDS = 240.0  # compute time of one report
INDICES = 16  # indices of visitors' own images that are kept; of 100 images and 1,472 channels, 10 MB
JOBS = 800  # jobs in progress, most of them waiting; an address may have as many as are left for others, at most half
RUNNING = 2  # jobs of a session that have a place, of each kind
WAITING = 4  # jobs of a session besides those that have a place or may have one; the page asks for at most six at once
PLACES = {"quick": 12, "long": 16, "lab": 2, "training": 1}  # jobs with an image in memory, which take turns; the lab
UNHEARD = 8.0  # seconds after which a job ends to which no one listens
MEMORY = 2 * 1024 * MB  # bytes of activations in one batch of a long method; large networks get smaller batches
ALLOCATED = 600 * MB  # bytes of the process without libraries; above, freed memory is returned after every job
NETWORKS = 1024 * MB  # bytes of the weights of the loaded networks, except the default and the latest one
SESSIONS = 64  # users whose state Gradio keeps, about 2 MB each; that of others is created again
UPDATES = 5  # partial results per second

# The end of the server, after SIGTERM.
STOP_SECONDS = 10.0  # running answers may finish
STOP_MARGIN = 2.0  # stopped answers may return what they have

# Temporary files.
KEEP = 3600.0  # seconds that an upload stays on disk after its last use
SWEEP = 30.0  # seconds between two cleanups
UPLOADS = 1024 * MB  # bytes of all uploads and results
UPLOADED_FILES = 5_000  # uploads and results
IN_USE = 300.0  # seconds after a request names an upload in which it is not removed; reports take up to BATCH_SECONDS
DISK_RESERVE = 64 * MB  # bytes of the disk that uploads leave free

# The gradient lab: a user-provided expression, and a small network that trains on the server.
EXPRESSION_LENGTH = 400  # characters
EXPRESSION_TENSORS = 3  # named tensors with values
EXPRESSION_STEPS = 24  # operations; each is a line of code and a node of the graph
EXPRESSION_DEPTH = 16  # nested brackets, powers, signs
EXPRESSION_NUMBERS = 64  # numbers in one tensor
EXPRESSION_LARGEST = 1e12  # magnitude of a literal
TRAINING_STEPS = 500  # steps of one run
TRAINING_SECONDS = 45.0  # compute time of one run
TRAINING_LAYERS = 8  # hidden layers of the small network
TRAINING_POINTS = 120  # points of a curve; longer runs record only every second, third … step
TRAINING_UPDATES = 3  # updates of the charts per second


def body(path: str) -> int:
    """Return the size limit of a request body for this path.

    Returns  bytes: `UPLOAD` for uploads, `AGENT` for agents (base64 images), `BODY` for everything else
    """
    if path.rstrip("/").endswith("/gradio_api/upload"):
        return UPLOAD
    return AGENT if path.rstrip("/") == "/mcp" else BODY
