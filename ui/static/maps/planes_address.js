// The plane that a visitor has chosen, as a parameter of the address; without it the one that the server chooses.
import { keep } from "../page/address.js";

/** For the pager of planes: `go(number)` asks for one. */
export function remembered(go) {
  let wanted = null, own = null, usual = null, about = null, value = null;
  const look = () => {
    if (!value || wanted === null || wanted >= value.count) return;
    own = wanted === usual ? null : wanted;
    wanted = null;
    if ((own ?? usual) !== value.plane) go(own ?? usual);
  };
  const changed = keep(["plane"], () => ({ plane: String(wanted ?? own ?? "") }), ({ plane = "" }, coming) => {
    wanted = /^\d{1,6}$/.test(plane) ? Number(plane) : coming ? null : usual;
    if (!coming) look();
  });
  return {
    chosen(plane) {
      own = plane === usual ? null : plane;
      changed();
    },
    shown(now) {
      if (now && now.planes !== about) [about, usual, own] = [now.planes, now.plane, null];  // of another question
      if (!now) about = usual = own = null;
      value = now;
      look();
      changed();
    },
  };
}
