/** The view that reads a text aloud: played while it is made, each word marked as it is heard. */

import { chip, fill } from "./chips.js";
import { SAMPLE_RATE } from "./codecs.js";
import { pack, unpack } from "./kyutai.js";
import { clock, download, fileName, headline, part, socketAddress, write } from "./page.js";
import { modelsOf, PATHS } from "./parameters.js";
import { Player } from "./player.js";
import { STALL_MS } from "./quality.js";
import { toInt16, wavHeader } from "./wav.js";
import { nameOf, offer, voicesOf } from "./voices.js";
import { STALLED } from "./words.js";

const IDLE = { line: "Write something, and hear it.", help: "It plays while it is made, and marks the word you hear.", isTrouble: false };
const READING = { line: "Reading aloud.", help: "", isTrouble: false };
const FOLLOW_MS = 60;
/** A large model may think long before its first sound. */
const GIVE_UP_MS = 20_000;
/** What is kept of the sound for saving: ten minutes. */
const MOST_SAMPLES = 600 * SAMPLE_RATE;

/** @typedef {{ element: HTMLElement, startS: number, isHeard: boolean }} Spoken */

export class Read {
  /**
   * @param {import("./settings.js").Settings} settings
   * @param {import("./about.js").About} about
   */
  constructor(settings, about) {
    this._settings = settings;
    this._about = about;
    this._button = part("speak", HTMLButtonElement);
    this._text = part("read-text", HTMLTextAreaElement);
    this._voice = part("voice", HTMLSelectElement);
    this._preview = part("preview", HTMLButtonElement);
    this._progress = part("read-progress", HTMLElement);
    this._words = part("spoken", HTMLElement);
    /** The text as this page last set it: another one is the visitor's. */
    this._given = "";
    /** @type {WebSocket | null} */
    this._socket = null;
    /** @type {Player | null} */
    this._player = null;
    /** @type {Float32Array[]} */
    this._sound = [];
    this._samples = 0;
    /** @type {Spoken[]} */
    this._spoken = [];
    this._isMade = false;
    /** Whether what is read only shows a voice. */
    this._isPreview = false;
    /** Words of the text. */
    this._total = 0;
    this._message = "";
    this._heardMs = 0;
    /** @type {import("./words.js").Words} */
    this._headline = IDLE;
    this.isShown = false;
  }

  begin() {
    this._button.addEventListener("click", () => void (this._player ? this._stop(IDLE) : this._speak(this._text.value.trim(), false)));
    this._voice.addEventListener("change", () => this._settings.keepVoice("read", this._voice.value));
    this._preview.addEventListener("click", () => this._speak(this._example, true));
    part("read-save", HTMLButtonElement).addEventListener("click", () => download(this._wav(), fileName(".wav")));
    setInterval(() => this._follow(), FOLLOW_MS);
  }

  named() {
    const model = this._model;
    write(part("read-model", HTMLElement), model?.name ?? "");
    write(part("read-about", HTMLElement), model?.card?.description ?? "");
    offer(part("voice-field", HTMLElement), this._voice, voicesOf(model), this._settings.voice("read"));
    const examples = model?.card?.examples ?? [];
    if (!this._text.value && examples.length) this._text.value = this._given = `${examples.join(". ")}.`;
    fill(part("read-samples", HTMLElement), examples.map((text) => chip(text, () => this._take(text))));
  }

  /** Read an example now; below what the visitor wrote, which stays. @param {string} text */
  _take(text) {
    if (this._player) void this._stop(IDLE); // a preview
    const written = this._text.value.trimEnd();
    if (!written || written === this._given) this._text.value = this._given = text;
    else if (!written.endsWith(text)) this._text.value = `${written}\n${text}`;
    this._speak(text, false);
  }

  /** What a voice says to show itself. */
  get _example() {
    return this._model?.card?.examples[0] ?? "Hello.";
  }

  show() {
    if (!this.isShown) return;
    const body = document.body.dataset;
    body["phase"] = this._player ? "call" : "idle";
    body["state"] = this._isPreview ? "idle" : this._player ? "speaking" : "idle";
    headline(this._headline);
    write(this._button, this._player ? "Stop" : "Read aloud");
    part("read-save", HTMLElement).hidden = !this._isMade || this._samples === 0 || this._isPreview;
    part("read-samples", HTMLElement).hidden = this._player !== null && !this._isPreview;
    this._preview.disabled = this._player !== null;
    this._words.hidden = this._spoken.length === 0 || this._isPreview;
    part("unsaid-note", HTMLElement).hidden = this._words.hidden || this._spoken.every((word) => word.isHeard);
    this._progress.hidden = this._player === null || this._isPreview;
  }

  async leave() {
    await this._stop(IDLE);
  }

  get _model() {
    return modelsOf(this._settings.all, PATHS.read)[0] ?? null;
  }

  /** @param {string} text @param {boolean} isPreview */
  _speak(text, isPreview) {
    if (this._player) return;
    if (!text) {
      this._say({ line: "There is nothing to read.", help: "Write some words first.", isTrouble: true });
      this._text.focus();
      return;
    }
    this._sound = [];
    this._spoken = [];
    this._samples = 0;
    this._isMade = false;
    this._isPreview = isPreview;
    this._total = text.split(/\s+/).length;
    this._message = "";
    this._words.replaceChildren();
    this._player = new Player();
    this._about.log("reading aloud");
    const { key } = this._settings;
    const query = new URLSearchParams({
      format: "PcmMessagePack",
      ...(this._model && { model: this._model.name }),
      ...(this._voice.value && { voice: this._voice.value }),
      ...(key && { auth_id: key }),
    });
    const socket = new WebSocket(socketAddress(`api/tts_streaming?${query}`));
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => this._received(socket, text, data);
    socket.onclose = ({ code, reason }) => socket === this._socket && this._ended(code, reason);
    this._socket = socket;
    this._heardMs = clock();
    this._say({ line: "Connecting…", help: "", isTrouble: false });
  }

  /** @param {WebSocket} socket @param {string} text @param {unknown} data */
  _received(socket, text, data) {
    if (socket !== this._socket || !(data instanceof ArrayBuffer)) return;
    this._heardMs = clock();
    const message = unpack(new Uint8Array(data));
    switch (message.type) {
      case "Ready":
        socket.send(pack({ type: "Text", text }));
        socket.send(pack({ type: "Eos" }));
        this._say(this._reading);
        break;
      case "Audio":
        this._hear(Float32Array.from(message["pcm"]));
        break;
      case "Text":
        this._word(String(message["text"]), Number(message["start_s"]), Number(message["stop_s"]));
        break;
      case "Error":
        this._message = String(message["message"]);
        break;
    }
  }

  /** @param {Float32Array} samples */
  _hear(samples) {
    this._player?.push(samples);
    if (this._samples < MOST_SAMPLES) this._sound.push(samples);
    this._samples += samples.length;
  }

  /** A word, crossed out where it takes no time: the model cannot say it. @param {string} text @param {number} startS @param {number} stopS */
  _word(text, startS, stopS) {
    const element = document.createElement("span");
    element.textContent = text.trim();
    const isHeard = stopS > startS;
    if (!isHeard) {
      element.className = "is-unsaid";
      const note = document.createElement("span");
      note.className = "visually-hidden";
      note.textContent = " (not said)";
      element.append(note);
    }
    if (this._spoken.length) this._words.append(" ");
    this._words.append(element);
    this._spoken.push({ element, startS, isHeard });
    this.show();
  }

  /** @param {number} code @param {string} reason */
  _ended(code, reason) {
    this._socket = null;
    this._isMade = true;
    if (code === 1000 && !this._message) {
      this.show();
      return; // what is made is still being heard
    }
    const isFull = this._message.includes("no free channels");
    const help = isFull ? "Every place is taken: try again in a moment." : this._message || reason || "The connection was lost.";
    void this._stop({ line: "This did not work.", help, isTrouble: true });
  }

  /** Mark the word that is heard now, and notice the end. */
  _follow() {
    const player = this._player;
    if (!player) return;
    const nowS = player.heardS;
    const now = this._spoken.findLast((word) => word.isHeard && word.startS <= nowS);
    for (const word of this._spoken) word.element.classList.toggle("is-spoken", word === now && nowS > 0);
    const bar = /** @type {HTMLProgressElement} */ (this._progress.firstElementChild);
    bar.value = Math.min(1, (now ? this._spoken.indexOf(now) + 1 : 0) / this._total);
    this._watch(player);
    if (this._socket || !player.isOver) return;
    void this._stop(this._isPreview ? IDLE : { line: "Read to the end.", help: "", isTrouble: false });
  }

  /** A server that stands still is shown, and given up after a while. @param {Player} player */
  _watch(player) {
    const silentMs = clock() - this._heardMs;
    if (!this._socket || silentMs < STALL_MS) return this._headline === STALLED && this._say(this._reading);
    if (silentMs > GIVE_UP_MS) void this._stop({ line: "The server does not answer.", help: "Press the button to try again.", isTrouble: true });
    else if (player.hasSound && player.isOver) this._say(STALLED); // what is still to be heard hides a short stall
  }

  /** @returns {import("./words.js").Words} */
  get _reading() {
    return this._isPreview ? { line: `This is ${nameOf(this._model, this._voice.value)}.`, help: "", isTrouble: false } : READING;
  }

  /** @param {import("./words.js").Words} words */
  async _stop(words) {
    const [socket, player] = [this._socket, this._player];
    this._socket = null;
    this._player = null;
    this._isMade = true;
    for (const word of this._spoken) word.element.classList.remove("is-spoken");
    this._say(words);
    socket?.close(1000);
    await player?.close();
  }

  /** @param {import("./words.js").Words} words */
  _say(words) {
    this._headline = words;
    this.show();
  }

  _wav() {
    const frames = this._sound.reduce((sum, it) => sum + it.length, 0);
    const header = /** @type {Uint8Array<ArrayBuffer>} */ (wavHeader({ sampleRate: SAMPLE_RATE, channels: 1, frames }));
    return new Blob([header, ...this._sound.map((it) => Int16Array.from(it, toInt16))], { type: "audio/wav" });
  }
}
