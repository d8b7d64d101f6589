/** The page: which views there are follows from what the server has; one is shown, by its link. */

import { About } from "./about.js";
import { beginKeyHelp } from "./keyhelp.js";
import { part } from "./page.js";
import { modelsOf, PATHS } from "./parameters.js";
import { Read } from "./read.js";
import { Settings } from "./settings.js";
import { Talk } from "./talk.js";
import { Transcribe } from "./transcribe.js";

/** @typedef {keyof typeof PATHS} ViewName */

class Page {
  constructor() {
    this._about = new About();
    this._settings = new Settings(
      {
        dialog: part("settings", HTMLDialogElement),
        body: part("settings-body", HTMLElement),
        reset: part("settings-reset", HTMLButtonElement),
        note: part("settings-note", HTMLElement),
      },
      {
        onParameters: (values) => this._views.talk.set(values),
        onMicrophone: (deviceId) => void this._views.talk.changeMicrophone(deviceId),
        onModel: () => this._known(),
      },
    );
    this._views = {
      talk: new Talk(this._settings, this._about),
      transcribe: new Transcribe(this._settings, this._about),
      read: new Read(this._settings, this._about),
    };
    /** @type {ViewName | null} */
    this._shown = null;
  }

  async begin() {
    for (const view of Object.values(this._views)) view.begin();
    part("settings-open", HTMLButtonElement).addEventListener("click", () => void this._settings.open());
    beginKeyHelp(() => this._settings.hasKeys);
    part("key-form", HTMLFormElement).addEventListener("submit", (event) => void this._giveKey(event));
    addEventListener("hashchange", () => void this._route());
    await this._settings.ask();
    this._about.log("page");
    // What a call needs besides is fetched now, not on the press of its button.
    void fetch(new URL("./worklets/duplex.js", import.meta.url)).catch(() => {});
    document.body.dataset["ready"] = "";
  }

  /** @returns {ViewName[]} those that the server has a model for; all that talk when it says nothing */
  get _names() {
    const names = /** @type {ViewName[]} */ (Object.keys(PATHS));
    const found = names.filter((name) => modelsOf(this._settings.all, PATHS[name]).length > 0);
    return found.length ? found : ["talk"];
  }

  /** What the server has is known, or has changed. */
  _known() {
    if (!this._views) return;
    const names = this._names;
    for (const link of document.querySelectorAll("#views a")) {
      const name = /** @type {HTMLElement} */ (link).dataset["view"];
      link.classList.toggle("is-absent", !names.includes(/** @type {ViewName} */ (name)));
    }
    part("views", HTMLElement).hidden = names.length < 2;
    part("key-form", HTMLElement).hidden = !this._settings.needsKey;
    document.body.dataset["key"] = this._settings.needsKey ? "asked" : "";
    for (const view of Object.values(this._views)) view.named();
    void this._route();
  }

  /** Show the view that the address names, or the first there is. */
  async _route() {
    const names = this._names;
    const wanted = /** @type {ViewName} */ (location.hash.slice(1));
    const name = names.includes(wanted) ? wanted : (names[0] ?? "talk");
    this._about.show(this._settings.all, this._settings.key !== "", name);
    if (name === this._shown) return;
    if (this._shown) await this._views[this._shown].leave();
    this._shown = name;
    document.body.dataset["view"] = name;
    for (const [other, view] of Object.entries(this._views)) {
      view.isShown = other === name;
      part(`view-${other}`, HTMLElement).hidden = other !== name;
    }
    for (const link of document.querySelectorAll("#views a")) {
      if (/** @type {HTMLElement} */ (link).dataset["view"] === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this._views[name].show();
    scrollTo(0, 0);
  }

  /** @param {Event} event */
  async _giveKey(event) {
    event.preventDefault();
    const field = part("key", HTMLInputElement);
    await this._settings.useKey(field.value.trim());
    if (this._settings.needsKey) {
      part("key-problem", HTMLElement).textContent = "This key is not accepted.";
      field.select();
    } else {
      part("talk", HTMLButtonElement).focus();
    }
  }
}

void new Page().begin();
