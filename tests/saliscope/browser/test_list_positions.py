"""Where lists and menus open: at least six choices by mouse in every window, nothing outside its box or the window."""

from __future__ import annotations

import pytest

from tests.saliscope.browser.conftest import STILL, Visit

LEAST = 6
WINDOWS = [(1280, 900), (1440, 900), (768, 900), (390, 844)]
ON_TOP = """(combobox) => {
  const list = combobox.querySelector("[role=listbox]").getBoundingClientRect();
  const head = combobox.querySelector(".hl-combobox-head")?.getBoundingClientRect().bottom ?? list.top;
  return [...combobox.querySelectorAll("[role=option][data-value]")].filter((row) => {
    const box = row.getBoundingClientRect(),
      [x, top, bottom] = [(box.left + box.right) / 2, box.top + 3, box.bottom - 3];
    const isWhole = box.top > head - 2 && box.bottom < list.bottom + 2;
    return isWhole && [top, bottom].every((y) => document.elementFromPoint(x, y)?.closest("[role=option]") === row);
  }).map((row) => row.dataset.value);
}"""
"""The values of the rows that are completely visible, with nothing above them."""
OUTSIDE = """(box) => {
  const { left, right } = box.getBoundingClientRect(), found = [];
  const texts = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode());) {
    const range = document.createRange();
    range.selectNodeContents(text);
    const own = range.getBoundingClientRect();
    if (own.width && (own.left < left || own.right > right)) found.push(text.textContent);
  }
  return found;
}"""
"""The texts that stick out of their box."""
LOOK = """(input) => ["color", "backgroundColor", "borderColor", "fontSize"].map(
  (name) => getComputedStyle(input)[name])"""


@pytest.fixture(params=WINDOWS, ids=lambda size: f"{size[0]}x{size[1]}")
def window(browser, app: str, request: pytest.FixtureRequest):
    """Return the page in a window of one size, dark in every second one, with the settings visible."""
    width, height = request.param
    scheme = "dark" if WINDOWS.index(request.param) % 2 else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **STILL)
    visit = Visit(context.new_page(), app).open()
    if width < 768:
        visit.page.locator("#hl-fold button").click()
    yield visit
    visit.check()
    context.close()


def test_every_list_shows_six_choices(window: Visit) -> None:
    """Six whole rows can be clicked, also after scrolling; a click selects the row under the mouse."""
    page = window.page
    height = page.viewport_size["height"]
    for name in ("model", "layer", "class", "method"):
        combobox = page.locator(f"#hl-{name} .hl-combobox")
        field = combobox.locator("[role=combobox]")
        field.click()
        combobox.locator("[role=option][data-value]").nth(LEAST).wait_for()
        assert len(combobox.evaluate(ON_TOP)) >= LEAST, name
        box, own = combobox.locator(".hl-combobox-box").bounding_box(), field.bounding_box()
        assert box and own and box["y"] >= 0 and box["y"] + box["height"] <= height
        assert box["y"] >= own["y"] + own["height"] or box["y"] + box["height"] <= own["y"], "it covers its field"
        combobox.locator("[role=listbox]").evaluate("(list) => { list.scrollTop += list.clientHeight; }")
        assert len(combobox.evaluate(ON_TOP)) >= LEAST - 1, f"{name}: the first or last row may be cut off"
        page.keyboard.press("Escape")
    combobox.locator("[role=combobox]").click()
    second = combobox.evaluate(ON_TOP)[1]
    window.after(lambda: combobox.locator(f"[data-value='{second}']").click())
    assert f"method={second}" in page.evaluate("location.search") or page.wait_for_url(f"**method={second}*") is None


def test_other_lists_show_six_choices(visit: Visit) -> None:
    """The true class, the settings of a compared map, and the second model, at the lower edge of the window."""
    visit.open()
    page = visit.page

    def check(combobox) -> None:
        combobox.locator("[role=combobox]").click()
        combobox.locator("[role=option][data-value]").nth(LEAST).wait_for()
        assert len(combobox.evaluate(ON_TOP)) >= LEAST
        page.keyboard.press("Escape")

    page.set_viewport_size({"width": 1280, "height": 600})  # the true class is at the lower edge
    check(page.locator("#hl-bars .hl-combobox"))
    page.set_viewport_size({"width": 1280, "height": 900})
    visit.open_view("Compare")
    for combobox in page.locator(".hl-compare-panel").first.locator(".hl-combobox").all():
        check(combobox)
    page.locator(".hl-segments button", has_text="Models").locator("visible=true").click()
    check(page.locator("#hl-models .hl-combobox"))


def test_a_list_stays_on_its_side_while_typing(first_view: Visit) -> None:
    """By keyboard: the list of methods opens above its field, and a short result stays there, next to the field."""
    page = first_view.page
    field, box = page.locator("#hl-method [role=combobox]"), page.locator("#hl-method .hl-combobox-box")
    row = page.locator("#hl-method .hl-combobox-field")
    row.click(position={"x": row.bounding_box()["width"] - 10, "y": 20})
    assert box.is_visible(), "the arrow is part of the field"
    page.keyboard.press("Escape")
    field.focus()
    page.keyboard.press("ArrowDown")
    above, own = box.bounding_box(), page.locator("#hl-method .hl-combobox").bounding_box()
    assert above and own and above["y"] + above["height"] <= own["y"]
    page.keyboard.type("rise")
    few = box.bounding_box()
    assert few and few["height"] < above["height"] and own["y"] - 4 <= few["y"] + few["height"] <= own["y"]
    page.keyboard.press("Escape")


def test_name_and_time_of_a_method_do_not_overlap(first_view: Visit) -> None:
    """A name has the space that it needs; the time is left out if it does not fit next to it."""
    page, method = first_view.page, first_view.page.locator("#hl-method")
    name, time = method.locator("[role=combobox]"), method.locator(".hl-combobox-aside")
    texts = """([name, aside]) => {
      const field = document.querySelector("#hl-method [role=combobox]"),
        time = document.querySelector("#hl-method .hl-combobox-aside");
      const before = [field.value, time.textContent];
      [field.value, time.textContent] = [name, aside];
      const canvas = document.createElement("canvas").getContext("2d"), style = getComputedStyle(field);
      canvas.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
      const from = field.getBoundingClientRect().left + parseFloat(style.paddingLeft),
        end = from + canvas.measureText(name).width, row = field.parentElement.getBoundingClientRect(),
        own = time.getBoundingClientRect(), start = own.left + parseFloat(getComputedStyle(time).paddingLeft);
      const isShown = own.top < row.bottom - 8;
      [field.value, time.textContent] = before;
      return { isShown, overlaps: isShown && end > start, isCut: end > row.right };
    }"""
    shown = set()
    for text in ("Grad-CAM", "Integrated gradients", "Discretized integrated gradients", "Layer gradient × activation"):
        for aside in ("instant", "up to a minute", "several minutes"):
            found = page.evaluate(texts, [text, aside])
            assert not found["overlaps"] and not found["isCut"], (text, aside, found)
            shown.add((text, found["isShown"]))
    assert ("Grad-CAM", True) in shown
    assert name.is_visible() and time.is_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_save_panels_are_in_the_window(visit: Visit, width: int) -> None:
    """The panels of a map, of the comparison and of an edited image; no text sticks out of its panel."""
    visit.page.set_viewport_size({"width": width, "height": 900})
    visit.open()

    looks: list[list[str]] = []

    def check(view: str) -> None:
        visit.page.locator(f"{view} .hl-share > button:enabled").first.click()
        panel = visit.page.locator(f"{view} .hl-share-items").first
        box = panel.bounding_box()
        looks.append(panel.locator("input[name=dpi]").evaluate(LOOK))
        assert panel.evaluate(OUTSIDE) == [], view
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= width, view
        assert box["y"] >= 0 and box["y"] + box["height"] <= 901, view
        visit.page.keyboard.press("Escape")

    check("#hl-overlay")
    visit.after(lambda: visit.page.locator("#hl-status .hl-cover").click(), "erase")
    check("#hl-erase")
    visit.open_view("Compare")
    check("#hl-compare")
    assert looks == [looks[0]] * 3, "one style, also on a dark page"


def test_no_sentence_about_one_image_above_the_batch_view(visit: Visit) -> None:
    """The headline and its buttons return with the Explain view."""
    visit.open()
    headline = visit.page.locator("#hl-status .hl-headline")
    buttons = visit.page.locator("#hl-status button")
    assert visit.headline.startswith("German shepherd")
    visit.open_view("Batch")
    headline.wait_for(state="hidden")
    assert (
        not any(button.is_visible() for button in buttons.all())
        and "shepherd" not in visit.page.locator("#hl-status").inner_text()
    )
    visit.open_view("Explain")
    headline.wait_for()
    assert visit.headline.startswith("German shepherd") and buttons.first.is_visible()


def test_shares_have_one_form_in_python_and_scripts(first_view: Visit) -> None:
    """The same text for a share, whether the server or the browser formats it."""
    from saliscope.percentages import percent

    shares = [0.0, 1e-9, 0.0004, 0.000999, 0.001, 0.0538, 0.0949, 0.0995, 0.1, 0.125, 0.94, 0.9996, 1.0, 1.23, -0.054]
    formatted = first_view.page.evaluate(
        "async (shares) => shares.map((await import(new URL('hl/wire.js', document.baseURI))).formatShare)",
        shares,
    )
    assert formatted == [percent(share) for share in shares]
    assert formatted[:6] == ["0%", "<0.1%", "<0.1%", "<0.1%", "0.1%", "5.4%"]
