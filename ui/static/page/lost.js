// While the connection is lost Gradio tells nobody what is chosen in its lists, and loads the page anew once it is back:
// what they show then and did not before belongs into the address.
const LISTS = { class: (label) => label, layer: (label) => label.split(" · ")[0] };
const SOON = 500;                                        // milliseconds until Gradio has drawn what an answer changes

let stood = {}, later = 0;

const shown = (name) => document.querySelector(`#hl-${name} input`)?.value ?? "";
const lost = () => [...document.querySelectorAll("[data-testid=toast-body], .toast-body")].some((each) => each.textContent.includes("Connection to the server was lost"));

function note() {
  if (!lost()) for (const name of Object.keys(LISTS)) stood[name] = shown(name);
}

/** The lists show what the address says: now, and once an answer is drawn. */
export function stand() {
  note();
  clearTimeout(later);
  later = setTimeout(note, SOON);
}

/** Call `asked` with what is chosen in the lists meanwhile, by parameter; `tops` are the labels of an empty class. */
export function watched(tops, asked) {
  const look = () => setTimeout(() => {
    if (!lost()) return;
    const news = Object.keys(LISTS).filter((name) => name in stood && shown(name) && shown(name) !== stood[name]);
    if (news.length) asked(Object.fromEntries(news.map((name) => [name, tops.includes(shown(name)) ? "" : LISTS[name](shown(name))])));
    for (const name of news) stood[name] = shown(name);
  }, SOON);
  for (const event of ["pointerup", "keyup"]) document.addEventListener(event, look, true);
}
