/** "About this server": what is served, what happened in this page, and where an operator looks. */

import { part, write } from "./page.js";
import { stopwatch } from "./words.js";

/** Older events go. */
const MOST_EVENTS = 200;

/** What each kind of model does, for people. */
const KINDS = /** @type {Readonly<Record<string, string>>} */ (
  Object.freeze({ duplex: "converses", codec: "repeats your voice", stt: "writes down speech", tts: "reads aloud" })
);

export class About {
  constructor() {
    this._events = part("events", HTMLOListElement);
    this._models = part("about-models", HTMLElement);
    this._last = "";
  }

  /** @param {string} event */
  log(event) {
    if (event === this._last) return;
    this._last = event;
    const item = document.createElement("li");
    const time = document.createElement("time");
    time.textContent = stopwatch(performance.now() / 1000);
    item.append(time, ` ${event}`);
    this._events.append(item);
    if (this._events.childElementCount > MOST_EVENTS) this._events.firstElementChild?.remove();
    part("events-title", HTMLElement).hidden = false;
  }

  /** @param {import("./parameters.js").Model[]} models */
  show(models) {
    this._models.replaceChildren(...models.map(entry));
    write(part("about-none", HTMLElement), models.length ? "" : "The server has not said what it serves.");
  }
}

/** @param {import("./parameters.js").Model} model */
function entry(model) {
  const item = document.createElement("li");
  const name = document.createElement("strong");
  name.textContent = model.name;
  const card = model.card;
  const facts = [
    KINDS[model.kind] ?? model.kind,
    card?.parameters ? `${(card.parameters / 1e6).toFixed(card.parameters < 1e7 ? 1 : 0)} million parameters` : "",
    card?.license ?? "",
    `${model.slots.total} calls at once`,
  ];
  item.append(name, ` ${facts.filter(Boolean).join(", ")}. ${card?.description ?? ""}`);
  return item;
}
