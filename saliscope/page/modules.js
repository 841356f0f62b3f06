// The scripts that draw the parts of the page, by the names in layout.py.
import { mount as arithmetic } from "./arithmetic/arithmetic.js";
import { mount as batch } from "./batch/batch.js";
import { mount as head } from "./batch/head.js";
import { mount as steps } from "./batch/steps.js";
import { mount as cellGradient } from "./channels/cell_gradient.js";
import { mount as channel } from "./channels/channel.js";
import { mount as channelFacts } from "./channels/channel_facts.js";
import { mount as channels } from "./channels/channels.js";
import { mount as unit } from "./channels/unit.js";
import { mount as compare } from "./compare/compare.js";
import { mount as concepts } from "./concepts/concepts.js";
import { mount as erase } from "./erase/erase.js";
import { mount as interventions } from "./interventions/interventions.js";
import { mount as depth } from "./lab/depth.js";
import { mount as expression } from "./lab/expression.js";
import { mount as training } from "./lab/training.js";
import { mount as choice } from "./lists/choice.js";
import { mount as classes } from "./maps/classes.js";
import { mount as planes } from "./maps/planes.js";
import { mount as guide } from "./methods/guide.js";
import { mount as models } from "./models/models.js";
import { mount as innerTabs } from "./navigation/inner_tabs.js";
import { mount as navigation } from "./navigation/navigation.js";
import { mount as parts } from "./navigation/parts.js";
import { mount as overlay } from "./overlay/overlay.js";
import { mount as actions } from "./panel/actions.js";
import { mount as bands } from "./panel/bands.js";
import { mount as crop } from "./panel/crop.js";
import { mount as examples } from "./panel/examples.js";
import { mount as findings } from "./panel/findings.js";
import { mount as image } from "./panel/image.js";
import { mount as options } from "./panel/options.js";
import { mount as pin } from "./panel/pin.js";
import { mount as snippets } from "./panel/snippets.js";
import { mount as preprocessing } from "./preprocessing/preprocessing.js";
import { mount as rail } from "./rail/rail.js";
import { mount as ranking } from "./ranking/ranking.js";
import { mount as bundle } from "./share/bundle.js";
import { mount as fold } from "./shared/fold.js";
import { mount as line } from "./shared/line.js";
import { mount as status } from "./shared/status.js";
import { mount as target } from "./text/target.js";
import { mount as trust } from "./trust/trust.js";

export const MODULES = {
  "arithmetic/arithmetic": arithmetic,
  "batch/batch": batch,
  "batch/head": head,
  "batch/steps": steps,
  "channels/cell_gradient": cellGradient,
  "channels/channel": channel,
  "channels/channel_facts": channelFacts,
  "channels/channels": channels,
  "channels/unit": unit,
  "compare/compare": compare,
  "concepts/concepts": concepts,
  "erase/erase": erase,
  "interventions/interventions": interventions,
  "lab/depth": depth,
  "lab/expression": expression,
  "lab/training": training,
  "lists/choice": choice,
  "maps/classes": classes,
  "maps/planes": planes,
  "methods/guide": guide,
  "models/models": models,
  "navigation/inner_tabs": innerTabs,
  "navigation/navigation": navigation,
  "navigation/parts": parts,
  "overlay/overlay": overlay,
  "panel/actions": actions,
  "panel/bands": bands,
  "panel/crop": crop,
  "panel/examples": examples,
  "panel/findings": findings,
  "panel/image": image,
  "panel/options": options,
  "panel/pin": pin,
  "panel/snippets": snippets,
  "preprocessing/preprocessing": preprocessing,
  "rail/rail": rail,
  "ranking/ranking": ranking,
  "share/bundle": bundle,
  "shared/fold": fold,
  "shared/line": line,
  "shared/status": status,
  "text/target": target,
  "trust/trust": trust,
};
