"""The settings of the site. `make docs` builds it into build/site."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from saliscope import __version__, install  # noqa: E402 the path above comes first

project = "Saliscope"
author = copyright = "Saliscope developers"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "reference_directives"]
exclude_patterns = ["templates"]
nb_execution_mode = "off"  # notebooks show the outputs that they contain
nb_merge_streams = True
myst_heading_anchors = 4
suppress_warnings = ["mystnb.unknown_mime_type"]
smartquotes = False  # quotes in sentences belong to code

default_role = "py:obj"  # `name` in a docstring links to the name, if it is public
add_module_names = False
autodoc_member_order = "bysource"
autodoc_default_options = {"no-index-entry": True}  # the search finds names without an index of them
html_use_index = False
autodoc_typehints_format = "short"
aliases = "Change Forward Maps MethodLike MethodName Params Placements Progress TargetLike ThroughLike"
autodoc_type_aliases = {name: name for name in aliases.split()}  # their definitions are long
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Saliscope {version}"
html_copy_source = html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["accessible.js"]
html_search_scorer = str(ROOT / "docs" / "scorer.js")
templates_path = ["templates"]
html_theme_options = {"top_of_page_buttons": []}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def link_to_repository(app, name, source):
    """Turn links to files outside docs/ into links to the repository, where GitHub shows them."""
    up = re.escape("../" * (name.count("/") + 1))
    source[0] = re.sub(rf"(?<=\]\(){up}(?!\.)", f"{install.REPOSITORY}/blob/main/", source[0])


def omit_unused_files(app, name, template, context, doctree):
    """Leave out styles that hardly change a page, so that it stays light: site.css has some lines for notebooks."""
    unused = ["mystnb", *(["copybutton", "clipboard", "pygments"] if name == "search" else [])]
    for kind in ("css_files", "script_files"):
        context[kind] = [file for file in context[kind] if not any(part in str(file) for part in unused)]


def setup(app):
    app.connect("source-read", link_to_repository)
    app.connect("html-page-context", omit_unused_files, priority=900)
