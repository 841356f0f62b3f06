// Download the listed images as CSV.
import { downloadFile } from "../../../page/wire.js";
import { $, DATA } from "./drawing.js";
import { order } from "./report.js";

/** Quote a value for CSV. A spreadsheet must not run a text as a formula, so such a text starts with an apostrophe. */
function quote(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = String(value),
    safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Return the listed images as CSV, with a header. */
function asCsv(entries) {
  const names = ["path", "label", "prediction", "probability", "label_probability", "correct", "target", "score"];
  const rows = entries.map((entry) => [...names.map((name) => quote(entry[name])), quote(entry.findings.join(" "))]);
  return [[...names, "findings"].join(","), ...rows.map((row) => row.join(","))].map((row) => `${row}\r\n`).join("");
}

$("#csv").addEventListener("click", () => {
  const texts = ["\ufeff", asCsv(order.map((k) => DATA.images[k]))];
  downloadFile(new Blob(texts, { type: "text/csv;charset=utf-8" }), "images.csv");
});
