// The function at the start of the bundle, a classic script (see bundle.py): it makes the modules of the bundle
// importable by their addresses, and starts Gradio. A browser without import maps loads Gradio as usual.
async ({ modules, styles, entry }) => {
  const { stored, loadGradio } = window.saliscope;
  const address = (name) => new URL(name, document.baseURI).href;
  for (const { props } of window.gradio_config?.components || []) {
    const { value, props: own } = stored?.[props.elem_id] || {};
    if (value === undefined) continue;
    props.value = value;
    Object.assign(props.props, own);
    window.saliscope.landed = true;
  }
  if (!HTMLScriptElement.supports?.("importmap")) return loadGradio();
  const imports = { "assets/": address("assets/"), "hl/": address("hl/") };
  for (const [name, text] of Object.entries(modules)) {
    imports[name] = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    imports[address(name)] = imports[name];
  }
  window.saliscope.isMissing = (path) => ![modules, styles].some((files) => path.replace("./", "assets/") in files);
  const map = Object.assign(document.createElement("script"), { type: "importmap" });
  map.textContent = JSON.stringify({ imports });
  const sheet = document.createElement("style");
  sheet.textContent = Object.values(styles).join("\n");
  // Gradio looks for its style sheet by this link and does not load it again.
  const link = document.createElement("link");
  link.setAttribute("href", `./${Object.keys(styles)[0]}`);
  document.head.append(link, sheet, map);
  try {
    await import(entry);
  } catch (error) {
    if (customElements.get("gradio-app")) throw error;
    loadGradio();
  }
};
