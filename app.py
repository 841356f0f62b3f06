"""Start the page. `python app.py` takes the same options as `saliscope serve`; a Hugging Face Space uses none."""

from __future__ import annotations

import sys

from saliscope.__main__ import main

if __name__ == "__main__":
    main(["serve", *sys.argv[1:]])
