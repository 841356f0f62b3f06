"""The command line: `hooklens explain`, `report`, `evaluate`, `models`, `methods`, `replay`, `serve`.

It stands above all other rooms and holds words and options alone: runs are `dataset`'s, the page is `ui`'s.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The rooms stand beside this folder; their names are too common to be put into anybody's environment.
_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)
