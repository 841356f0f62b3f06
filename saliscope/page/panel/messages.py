"""Labels and messages of the left column, most of them for the scripts."""

UNUSED = "This view does not use the image and the settings."

IMAGE = {
    "label": "Image",
    "alt": "Input image",
    "empty": "Drop an image here\nor click to choose one",
    "upload": "Upload",
    "paste": "Paste",
    "camera": "Camera",
    "shoot": "Take the photo",
    "cancel": "Cancel",
    "remove": "Remove the image",
    "uploading": "Uploading {percent}%",
    "failed": "The upload failed: {reason}",
    "no_image": "The clipboard has no image. Copy an image, or upload a file.",
    "no_camera": "The camera is not available. Allow it in the browser, or upload a file.",
    "accept": "image/*,.npy,.tif,.tiff",
}
"""Labels used by panel/image.js."""

ACTIONS = {"explain": "Explain", "stop": "Stop", "copy_link": "Copy link"}
"""Labels used by panel/actions.js."""

BANDS = {
    "title": "Bands shown as red, green and blue",
    "red": "Red",
    "green": "Green",
    "blue": "Blue",
    "band": "Band {number}",
}
"""Labels used by panel/bands.js."""

CROP = {
    "group": "The part of the image that the model receives",
    "center": "Center crop",
    "word": "crop",
    "whole": "Whole image",
    "whole_hint": "The whole image, with black margins if it is not square",
    "frame": "The model receives the part inside this frame. Drag it, or move it with the arrow keys",
}
"""Labels used by panel/crop.js."""

EXAMPLES = {"group": "Example images", "upload": "Upload", "accept": "image/*,.npy,.tif,.tiff"}
"""Labels used by panel/examples.js."""

OPTIONS = {
    "none": "This method has no options.",
    "automatic": "automatic",
    "number": "number",
    "whole_number": "whole number",
    "empty": "this",
    "no_number": "no number",
    "invalid": "Must be a {kind} {range}, not {text}.",
    "at_least": "of at least {low}",
    "between": "from {low} to {high}",
    "low": "from {low}",
    "range": "{low} to {high}",
}
"""Labels used by panel/options.js."""

PREPROCESSING = {
    "group": "Preprocessing of this model",
    "fields": {
        "size": ["Size", "Height x width in pixels"],
        "mean": ["Mean", "One number per channel, for pixel values from 0 to 1"],
        "std": ["Standard deviation", "One number per channel"],
        "score": ["Output", "How the output becomes a probability"],
        "device": ["Device", "Where the network runs; each device has its own copy"],
    },
    "scores": {
        "softmax": "logits: softmax",
        "sigmoid": "logits of independent classes: sigmoid",
        "identity": "probabilities",
        "log": "log-probabilities",
        "logit": "scores without probabilities",
    },
    "apply": "Apply",
    "reset": "Undo changes",
}
"""Labels used by preprocessing/preprocessing.js."""


def device(name: str) -> str:
    """Return the line for a network that runs on this device."""
    return f"Device: {name}"


def preprocessing(height: int, width: int, mean: str, std: str) -> str:
    """Return the preprocessing of a network in one line."""
    return f"Preprocessing: {height} × {width} pixels, mean {mean}, standard deviation {std}"
