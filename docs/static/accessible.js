// What the theme lacks for screen readers and keyboards; `make docs` checks the pages with axe.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".caption[role=heading]").forEach((each) => each.setAttribute("aria-level", "2"));
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  document.querySelectorAll("pre, .table-wrapper").forEach((each) => (each.tabIndex = 0));
  // The parameters of a long signature are descriptions without terms, which is not a valid list.
  document.querySelectorAll("dt.sig dl").forEach((list) => {
    const lines = [...list.children].map((each) => {
      const line = document.createElement("div");
      line.append(...each.childNodes);
      return line;
    });
    const box = document.createElement("div");
    box.className = "parameters";
    box.append(...lines);
    list.replaceWith(box);
  });
});
