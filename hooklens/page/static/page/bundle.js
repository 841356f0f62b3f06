// The function at the start of the bundle, a classic script (see hooklens/page/serving/bundle.py): it makes the modules
// of the bundle importable by their addresses, and starts Gradio. A browser without import maps loads Gradio as usual.
async ({ modules, styles, entry }) => {
  const { stored, loadGradio } = window.hooklens;
  const address = (name) => new URL(name, document.baseURI).href;
  if (stored) {
    for (const { props } of window.gradio_config.components) Object.assign(props, stored[props.elem_id]);
  }
  if (!HTMLScriptElement.supports?.("importmap")) return loadGradio();
  const imports = { "assets/": address("assets/"), "hl/": address("hl/") };
  for (const [name, text] of Object.entries(modules)) {
    imports[name] = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    imports[address(name)] = imports[name];
  }
  window.hooklens.isMissing = (path) => ![modules, styles].some((files) => path.replace("./", "assets/") in files);
  const map = Object.assign(document.createElement("script"), { type: "importmap" });
  map.textContent = JSON.stringify({ imports });
  const sheet = document.createElement("style");
  sheet.textContent = Object.values(styles).join("\n");
  document.head.append(sheet, map);
  try {
    await import(entry);
  } catch (error) {
    if (customElements.get("gradio-app")) throw error;
    loadGradio();
  }
};
