"""Labels and messages of the left column that only the scripts use."""

BANDS = {
    "title": "Bands shown as red, green and blue",
    "red": "Red",
    "green": "Green",
    "blue": "Blue",
    "band": "Band {number}",
    "frame": "The model receives the part inside this frame",
}
"""Labels used by static/panel/bands.js."""

EXAMPLES = {"group": "Example images", "upload": "Upload", "accept": "image/*,.npy,.tif,.tiff"}
"""Labels used by static/panel/examples.js."""

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
"""Labels used by static/panel/options.js."""
