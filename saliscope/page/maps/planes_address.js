// Stores the selected plane as a parameter of the address. Without it, the server selects the plane.
import { bindParameters } from "../shared/address.js";

/**
 * Bind the pager of planes to the address.
 * @param {(plane: number) => void} go requests a plane
 */
export function bindPlane(go) {
  let wanted = null,
    own = null,
    usual = null,
    about = null,
    value = null;
  const look = () => {
    if (!value || wanted === null || wanted >= value.count) return;
    own = wanted === usual ? null : wanted;
    wanted = null;
    if ((own ?? usual) !== value.plane) go(own ?? usual);
  };
  const changed = bindParameters(
    ["plane"],
    () => ({ plane: String(wanted ?? own ?? "") }),
    ({ plane = "" }, coming) => {
      wanted = /^\d{1,6}$/.test(plane) ? Number(plane) : coming ? null : usual;
      if (!coming) look();
    },
  );
  return {
    chosen(plane) {
      own = plane === usual ? null : plane;
      changed();
    },
    shown(now) {
      if (now && now.planes !== about) [about, usual, own] = [now.planes, now.plane, null]; // of another request
      if (!now) about = usual = own = null;
      value = now;
      look();
      changed();
    },
  };
}
