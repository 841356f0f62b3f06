"""axe finds nothing, of any severity, in any view of the page, in light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.saliscope.browser.conftest import Visit, expect

VIEWS = "[...document.querySelectorAll('#hl-tabs > [data-tab]')].map((view) => view.dataset.tab)"
OPEN = """(name) => {
  const address = new URL(location.href);
  address.searchParams.set("tab", name);
  history.pushState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
}"""
FOUND = """async (rules) => (await axe.run(document, rules ? { runOnly: rules } : {})).violations.flatMap((rule) =>
  rule.nodes.map((node) => `${rule.id} (${rule.impact}): ${node.target.join(" ")} ${node.failureSummary}`))"""


def axe_script() -> str:
    """Return axe-core, which a package of the extra `test` contains."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    return (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.slow  # minutes on two cores
def test_axe_finds_nothing_in_any_view(visit: Visit) -> None:
    script, found = axe_script(), dict[str, list[Any]]()
    page = visit.open().page
    page.evaluate(script)
    views = page.evaluate(VIEWS)
    assert {"overlay", "compare", "ranking", "features", "many", "lab", "api"} <= set(views)
    for theme, rules in (("light", None), ("dark", ["color-contrast"])):  # the others do not depend on the theme
        page.evaluate("(dark) => document.body.classList.toggle('dark', dark)", theme == "dark")
        for name in views:
            page.evaluate(OPEN, name)
            expect(page.locator(f"#hl-tabs > [data-tab={name}]")).to_be_visible()
            page.wait_for_timeout(500)  # modules of the tab, transitions of colors
            found[f"{theme}, {name}"] = page.evaluate(FOUND, rules)
        page.locator("#hl-navigation [aria-haspopup=menu]").click()
        found[f"{theme}, menu"] = page.evaluate(FOUND, rules)
        page.keyboard.press("Escape")
    assert {view: nodes for view, nodes in found.items() if nodes} == {}
