/** "About this server": what is served, what happened in this page, and where an operator looks. */

import { linesFor } from "./clients.js";
import { copy, part, write } from "./page.js";
import { stopwatch } from "./words.js";

/** Older events go. */
const MOST_EVENTS = 200;

/** What each kind of model does, for people. */
const KINDS = /** @type {Readonly<Record<string, string>>} */ (
  Object.freeze({ agent: "a voice agent", duplex: "converses", codec: "repeats your voice", stt: "writes down speech", tts: "reads aloud" })
);

export class About {
  constructor() {
    this._events = part("events", HTMLOListElement);
    this._models = part("about-models", HTMLElement);
    this._clients = part("about-clients", HTMLElement);
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

  /**
   * @param {import("./parameters.js").Model[]} models
   * @param {boolean} hasKeys whether this page was given a key
   * @param {keyof typeof import("./parameters.js").PATHS} view that is open
   */
  show(models, hasKeys, view) {
    this._models.replaceChildren(...models.map(entry));
    write(part("about-none", HTMLElement), models.length ? "" : "The server has not said what it serves.");
    const base = new URL(".", document.baseURI).href.replace(/\/$/, "");
    const clients = linesFor(models, { base, hasKeys }, view);
    this._clients.hidden = clients.length === 0;
    part("client-lines", HTMLElement).replaceChildren(...clients.flatMap(lines));
  }
}

/** @param {{name: string, lines: string}} client */
function lines(client) {
  const title = document.createElement("h3");
  const button = document.createElement("button");
  const block = document.createElement("pre");
  const code = document.createElement("code");
  code.textContent = client.lines;
  block.append(code);
  block.tabIndex = 0; // it scrolls sideways, by keyboard too
  block.setAttribute("role", "region");
  block.setAttribute("aria-label", `Lines for ${client.name}`);
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy the lines for ${client.name}`);
  button.addEventListener("click", () => void copy(button, client.lines));
  title.append(`${client.name} `, button);
  return [title, block];
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
    model.slots.total === 1 ? "one call at a time" : `${model.slots.total} calls at once`,
  ];
  item.append(name, ` ${facts.filter(Boolean).join(", ")}. ${card?.description ?? ""}`);
  return item;
}
