// The open channel, as a parameter of the address; a link's opens as soon as the tiles are there.
import { keep } from "../page/address.js";
import { listen, old, open, walk } from "./walk.js";

let wanted = null;

function look() {
  if (wanted === null || !walk.total || old()) return;
  const number = wanted;
  wanted = null;
  if (number < walk.total && number !== walk.number) open(number);
}

const changed = keep(["channel"], () => ({ channel: String(wanted ?? walk.number ?? "") }), ({ channel = "" }) => {
  wanted = /^\d{1,6}$/.test(channel) ? Number(channel) : null;
  if (wanted === null && walk.number !== null) open(null);
  else look();
});
listen(() => { look(); changed(); });
