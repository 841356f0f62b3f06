// The comparison: draws its images and maps, and sorts its tables. Scripts of the report are inserted above.

for (const canvas of $$("canvas[data-map], canvas[data-photo]")) seen.observe(canvas);

addEventListener("beforeprint", () => drawAll());
loadAll();
