/** The settings dialog: drawn from what the server says its models can be asked, remembered in this browser. */

import { chip, fill } from "./chips.js";
import { listMicrophones } from "./microphone.js";
import { MicrophoneTest } from "./microphonetest.js";
import { changed, isTyped, labelOf, LABELS, modelsOf, PATHS, queryOf, show, sliderLow, snap, stepOf, withAgents } from "./parameters.js";
import { OWN_VOICE, voicesOf } from "./voices.js";

/** @typedef {import("./parameters.js").Model} Model */
/** @typedef {import("./parameters.js").Values} Values */

/**
 * @typedef {object} Kept
 * @property {string} model
 * @property {string} format how sound travels
 * @property {string} deviceId
 * @property {number} waitS
 * @property {string} textPrompt
 * @property {string} voicePrompt the voice of a call; "" for the model's own
 * @property {string} readVoice the voice that reads aloud; "" for the first
 * @property {string} key
 * @property {string} heard "always", or "held": while a button or a key is held
 * @property {string} keys "on", or "off": single keys do nothing
 * @property {Values} values
 */

/** @type {Kept} */
const FRESH = {
  ...{ model: "", format: "auto", deviceId: "", waitS: 300, textPrompt: "", voicePrompt: "", readVoice: "", key: "", heard: "always", keys: "on" },
  values: {},
};
const STORE = "antiphon.settings";
/** The page is shown all the same: what is not known then is asked again before a call. */
const ASK_LIMIT_MS = 4000;
const FORMATS = /** @type {[string, string][]} */ ([
  ["auto", "Opus where the browser has it"],
  ["opus", "Opus"],
  ["pcm_s16le", "PCM, uncompressed"],
  ["webrtc", "WebRTC, where the network loses packets"],
]);
const HEARD = /** @type {[string, string][]} */ ([
  ["always", "All the time"],
  ["held", "While I hold the button, or the key T"],
]);
const KEYS = /** @type {[string, string][]} */ ([
  ["on", "On"],
  ["off", "Off"],
]);
/** Where the voice of each use is kept. */
const VOICES = Object.freeze({ talk: "voicePrompt", read: "readVoice" });
/** Roles to begin with. */
const PERSONAS = Object.freeze([
  "You are a friendly librarian.",
  "You are a patient teacher of English.",
  "You work at the front desk of a small hotel.",
]);
const WAITS = /** @type {[string, string][]} */ ([
  ["0", "Do not wait"],
  ["60", "One minute"],
  ["300", "Five minutes"],
  ["600", "Ten minutes"],
]);

export class Settings {
  /**
   * @param {{ dialog: HTMLDialogElement, body: HTMLElement, reset: HTMLElement, note: HTMLElement }} parts
   * @param {{ onParameters: (values: Values) => void, onMicrophone: (deviceId: string) => void,
   *   onModel: (model: Model | null) => void }} listener told of what a call can change while it lasts
   */
  constructor(parts, listener) {
    this._parts = parts;
    /** Whether the sampling is unfolded. */
    this._isExpert = false;
    /** Those one can talk to. @type {Model[]} */
    this._models = [];
    /** All of the server's. @type {Model[]} */
    this.all = [];
    /** Whether the server takes calls by WebRTC. */
    this._hasPeers = false;
    /** Whether the server wants a key that it has not been shown. */
    this.needsKey = false;
    this._listener = listener;
    this._kept = load();
    this._test = new MicrophoneTest(() => this._kept.deviceId);
    parts.dialog.addEventListener("close", () => this._test.stop());
    parts.reset.addEventListener("click", () => this._reset());
    navigator.mediaDevices?.addEventListener("devicechange", () => {
      if (parts.dialog.open) void this._draw(); // a microphone was plugged in or out
    });
  }

  /** Ask the server which models it has. */
  async ask() {
    const answer = await fetchModels(this._kept.key);
    this.needsKey = answer.status === 401;
    if (answer.models) {
      this.all = answer.models;
      this._hasPeers = answer.hasPeers;
      this._models = modelsOf(this.all, PATHS.talk);
    }
    this._listener.onModel(this.model);
  }

  get key() {
    return this._kept.key;
  }

  /** Show the server this key from now on. @param {string} key */
  async useKey(key) {
    this._keep({ key });
    await this.ask();
  }

  async open() {
    await this._draw();
    this._parts.note.textContent = "";
    this._parts.dialog.showModal();
  }

  /** The model that is chosen; null when the server told of none. */
  get model() {
    return this._models.find((model) => model.name === this._kept.model) ?? this._models[0] ?? null;
  }

  /** @param {keyof typeof VOICES} use */
  voice(use) {
    return this._kept[VOICES[use]];
  }

  /** Every place that offers this voice shows the choice. @param {keyof typeof VOICES} use @param {string} id */
  keepVoice(use, id) {
    this._keep({ [VOICES[use]]: id });
    this._listener.onModel(this.model);
  }

  get format() {
    return this._formats.some(([name]) => name === this._kept.format) ? this._kept.format : FRESH.format;
  }

  /** Whether the next call could go by WebRTC, and does not. */
  get offersPeers() {
    return this._hasPeers && this.format !== "webrtc";
  }

  get _formats() {
    return FORMATS.filter(([name]) => name !== "webrtc" || this._hasPeers);
  }

  /** Whether the visitor is heard only while a button or a key is held. */
  get holdsToTalk() {
    return this._kept.heard === "held";
  }

  /** Whether single keys do something. */
  get hasKeys() {
    return this._kept.keys !== "off";
  }

  get deviceId() {
    return this._kept.deviceId;
  }

  /**
   * The query of the next connection.
   *
   * @param {string} format
   */
  query(format) {
    return queryOf({ ...this._kept, model: this.model, format });
  }

  /** @param {Partial<Kept>} change */
  _keep(change) {
    this._kept = { ...this._kept, ...change };
    try {
      localStorage.setItem(STORE, JSON.stringify(this._kept));
    } catch {
      // A browser that keeps nothing for us: the settings last as long as the page.
    }
  }

  _reset() {
    this._keep({ ...FRESH, key: this._kept.key });
    this._parts.note.textContent = "Everything is back to its default.";
    this._listener.onParameters(defaultsOf(this.model));
    this._listener.onModel(this.model);
    void this._draw();
  }

  // What it looks like.

  async _draw() {
    const model = this.model;
    const groups = /** @type {HTMLElement[]} */ ([await this._callGroup()]);
    if (model?.voices) groups.push(this._personaGroup(model));
    const reading = voicesOf(modelsOf(this.all, PATHS.read)[0] ?? null);
    if (reading.length > 1) groups.push(this._readingGroup(reading));
    if (model && Object.keys(model.ranges).length) groups.push(this._samplingGroup(model));
    const { body } = this._parts;
    const focused = document.activeElement;
    const name = focused && body.contains(focused) ? focused.getAttribute("name") : null;
    body.replaceChildren(...groups);
    // Keyboard focus stays where it was.
    const same = name && body.querySelector(`[name="${CSS.escape(name)}"]`);
    if (same instanceof HTMLElement) same.focus();
  }

  async _callGroup() {
    const group = fieldset("This call", "");
    if (this._models.length > 1) {
      const choices = this._models.map((model) => /** @type {[string, string]} */ ([model.name, describe(model)]));
      const pick = choice("Model", "For the next call.", choices, this.model?.name ?? "", (name) => {
        this._keep({ model: name, values: {} });
        this._listener.onModel(this.model);
        void this._draw();
      });
      pick.querySelector("select")?.setAttribute("id", "model");
      group.append(pick);
    } else if (this.model) {
      const only = document.createElement("p");
      only.className = "note";
      only.textContent = `Model: ${describe(this.model)}`;
      group.append(only);
    }
    const devices = await listMicrophones();
    const microphones = devices.map((it, index) => /** @type {[string, string]} */ ([it.deviceId, it.label || `Microphone ${index + 1}`]));
    const hint = devices.some((it) => it.label) ? "" : "Names appear once a call was made.";
    group.append(
      choice("Microphone", hint, [["", "The system's choice"], ...microphones], this._kept.deviceId, (deviceId) => {
        this._keep({ deviceId });
        this._test.stop();
        this._listener.onMicrophone(deviceId);
      }),
      this._test.element,
      choice("You are heard", "For the next call.", HEARD, this._kept.heard, (heard) => this._keep({ heard })),
      choice("Keys M, T and ?", "M mutes, T opens the microphone while you hold it, ? lists the keys.", KEYS, this._kept.keys, (keys) => this._keep({ keys })),
      choice("Sound travels as", "For the next call.", this._formats, this.format, (format) => this._keep({ format })),
      choice("When the server is full, wait", "", WAITS, String(this._kept.waitS), (waitS) => this._keep({ waitS: Number(waitS) })),
      this._keyField(),
    );
    return group;
  }

  _keyField() {
    const key = document.createElement("input");
    key.type = "password";
    key.name = "key";
    key.autocomplete = "off";
    key.value = this._kept.key;
    key.addEventListener("change", async () => {
      await this.useKey(key.value.trim());
      await this._draw();
    });
    return field("Access key", "Only where the server asks for one. It is kept in this browser.", key, null);
  }

  /** @param {Model} model */
  _personaGroup(model) {
    const group = fieldset("Who speaks", "For the next call.");
    const prompt = document.createElement("textarea");
    prompt.name = "text_prompt";
    prompt.value = this._kept.textPrompt;
    prompt.placeholder = PERSONAS[0] ?? "";
    prompt.addEventListener("change", () => this._keep({ textPrompt: prompt.value.trim() }));
    const roles = document.createElement("ul");
    roles.className = "chips";
    fill(
      roles,
      PERSONAS.map((text) =>
        chip(text, () => {
          prompt.value = text;
          this._keep({ textPrompt: text });
        }),
      ),
    );
    group.append(field("Who it is", "", prompt, null), roles);
    const voices = voicesOf(model, OWN_VOICE);
    if (voices.length) group.append(choice("Its voice", "", voices, this._kept.voicePrompt, (id) => this.keepVoice("talk", id)));
    return group;
  }

  /** @param {[string, string][]} voices */
  _readingGroup(voices) {
    const group = fieldset("Read aloud", "");
    group.append(choice("Voice that reads", "", voices, this._kept.readVoice, (id) => this.keepVoice("read", id)));
    return group;
  }

  /** @param {Model} model */
  _samplingGroup(model) {
    const note =
      model.kind === "codec"
        ? "This model repeats what it hears and makes no choices: these matter to models that speak."
        : "Changes are heard at once, also in the middle of a call.";
    const group = document.createElement("details");
    group.className = "expert";
    group.open = this._isExpert;
    group.addEventListener("toggle", () => void (this._isExpert = group.open));
    const summary = document.createElement("summary");
    summary.textContent = "For experts: how it chooses";
    const words = document.createElement("p");
    words.className = "note";
    words.textContent = note;
    group.append(summary, words);
    const known = Object.keys(LABELS).filter((name) => model.ranges[name]);
    const others = Object.keys(model.ranges).filter((name) => !(name in LABELS));
    for (const name of [...known, ...others]) group.append(this._parameter(model, name));
    return group;
  }

  /**
   * @param {Model} model
   * @param {string} name
   */
  _parameter(model, name) {
    const range = model.ranges[name];
    if (!range) throw new RangeError(`no range for ${name}`);
    const [label, hint] = labelOf(name);
    const input = document.createElement("input");
    input.name = name;
    const output = document.createElement("output");
    output.setAttribute("aria-live", "off"); // the slider itself is read out
    const row = field(label, hint, input, output);
    const paint = () => {
      const value = this._value(model, name);
      output.textContent = show(value, range);
      row.classList.toggle("is-changed", name in changed(model, this._kept.values));
      if (!isTyped(range)) input.setAttribute("aria-valuetext", show(value, range));
    };
    const value = this._value(model, name);
    input.min = String(isTyped(range) ? range.low : sliderLow(range));
    input.max = String(isTyped(range) ? Number.MAX_SAFE_INTEGER : range.high);
    input.step = String(stepOf(range));
    input.type = isTyped(range) ? "number" : "range";
    input.placeholder = show(null, range);
    input.value = value === null ? "" : String(value);
    input.addEventListener("input", () => {
      const typed = input.value === "" ? null : snap(Number(input.value), range);
      this._keep({ values: { ...this._kept.values, [name]: typed } });
      paint();
    });
    input.addEventListener("change", () => {
      const now = this._value(model, name);
      input.value = now === null ? "" : String(now);
      if (now !== null || range.is_optional) this._listener.onParameters({ [name]: now });
    });
    paint();
    return row;
  }

  /**
   * @param {Model} model
   * @param {string} name
   */
  _value(model, name) {
    return this._kept.values[name] ?? model.parameters[name] ?? null;
  }
}

/**
 * The numbers a running call goes back to; seeds stay as they were drawn.
 *
 * @param {Model | null} model
 * @returns {Values}
 */
function defaultsOf(model) {
  const entries = Object.entries(model?.parameters ?? {});
  return Object.fromEntries(entries.filter(([name, value]) => value !== null || model?.ranges[name]?.is_optional));
}

/** @param {Model} model */
function describe(model) {
  const kinds = /** @type {Record<string, string>} */ ({ agent: "a voice agent", codec: "repeats your voice", duplex: "converses" });
  return kinds[model.kind] ? `${model.name}, ${kinds[model.kind]}` : model.name;
}

/**
 * @param {string} key
 * @returns {Promise<{ status: number, models: Model[] | null, hasPeers: boolean }>} 0 where nothing answers in time
 */
async function fetchModels(key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : undefined;
  try {
    const response = await fetch("api/models", { ...(headers && { headers }), signal: AbortSignal.timeout(ASK_LIMIT_MS) });
    const found = response.ok ? await response.json() : null;
    return { status: response.status, models: found && withAgents(found), hasPeers: Boolean(found?.webrtc) };
  } catch {
    return { status: 0, models: null, hasPeers: false }; // the call will say that nothing answers
  }
}

/** @returns {Kept} */
function load() {
  try {
    return { ...FRESH, ...JSON.parse(localStorage.getItem(STORE) ?? "{}") };
  } catch {
    return FRESH; // nothing kept, or not by us
  }
}

/**
 * @param {string} title
 * @param {string} note
 */
function fieldset(title, note) {
  const group = document.createElement("fieldset");
  const legend = document.createElement("legend");
  legend.textContent = title;
  group.append(legend);
  if (note) {
    const words = document.createElement("p");
    words.className = "note";
    words.textContent = note;
    group.append(words);
  }
  return group;
}

/**
 * @param {string} label
 * @param {string} hint
 * @param {HTMLElement} control
 * @param {HTMLOutputElement | null} output
 */
function field(label, hint, control, output) {
  const row = document.createElement("label");
  row.className = "field";
  const title = document.createElement("span");
  title.textContent = label;
  control.classList.add("control");
  row.append(title, output ?? document.createElement("span"), control);
  if (hint) {
    const words = document.createElement("span");
    words.className = "hint";
    words.textContent = hint;
    row.append(words);
  }
  return row;
}

/**
 * @param {string} label
 * @param {string} hint
 * @param {[string, string][]} choices value and words
 * @param {string} chosen
 * @param {(value: string) => void} onChange
 */
function choice(label, hint, choices, chosen, onChange) {
  const select = document.createElement("select");
  select.name = label;
  for (const [value, words] of choices) select.add(new Option(words, value, false, value === chosen));
  select.addEventListener("change", () => onChange(select.value));
  return field(label, hint, select, null);
}
