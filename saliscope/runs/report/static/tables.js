// Sort the tables of a page, and mark the section that is read in the navigation.
import { make } from "../../../page/wire.js";
import { $, $$ } from "./drawing.js";

/** Sort the rows of a table by a column, by number or else by text; rows without a value come last. */
function sortBy(header, index) {
  const now = header.getAttribute("aria-sort");
  const up = now !== "ascending" && (now !== null || !header.classList.contains("n"));
  const body = header.closest("table").tBodies[0];
  const value = (row) => {
    const given = row.cells[index].dataset.v;
    return given === undefined
      ? row.cells[index].textContent.trim().toLowerCase()
      : given === ""
        ? null
        : Number(given);
  };
  const rows = [...body.rows].map((row) => [value(row), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return (up ? 1 : -1) * (typeof a === "string" ? a.localeCompare(b) : a - b);
  });
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...rows.map(([, row]) => row));
}

for (const table of $$("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, index) => {
    if (header.classList.contains("plain")) return;
    const button = make("button", { type: "button", text: header.textContent });
    button.addEventListener("click", () => sortBy(header, index));
    header.replaceChildren(button);
  });
}

const sections = $$("main section"),
  sectionLinks = $("nav");

/** Mark the last section whose heading has passed the upper third of the window, and show its link. */
function markSection() {
  const passed = sections.filter((each) => each.getBoundingClientRect().top < innerHeight / 3);
  const isEnd = scrollY > 0 && scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
  const { id } = (isEnd ? sections.at(-1) : passed.at(-1)) || sections[0];
  for (const link of $$("a", sectionLinks)) {
    const isCurrent = link.hash === `#${id}`;
    if (isCurrent === link.hasAttribute("aria-current")) continue;
    link.toggleAttribute("aria-current", false);
    if (!isCurrent) continue;
    link.setAttribute("aria-current", "location");
    sectionLinks.scrollTo({ left: link.offsetLeft - sectionLinks.clientWidth / 3 });
  }
}

addEventListener("scroll", markSection, { passive: true });
markSection();
