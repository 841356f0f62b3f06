// Sort the tables of a page.

/** Sort the rows of a table by a column, by number or else by text; rows without a value come last. */
function sortBy(header, index) {
  const now = header.getAttribute("aria-sort");
  const up = now !== "ascending" && (now !== null || !header.classList.contains("n"));
  const body = header.closest("table").tBodies[0];
  const value = (row) => {
    const given = row.cells[index].dataset.v;
    return given === undefined ? row.cells[index].textContent.trim().toLowerCase() : given === "" ? null : Number(given);
  };
  const rows = [...body.rows].map((row) => [value(row), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
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
