/** The page: what is pressed becomes a call, and what becomes of the call is shown. */

import { Call } from "./call.js";
import { MicrophoneError } from "./microphone.js";
import { Panel } from "./panel.js";
import { LONGEST_S } from "./recorder.js";
import { explain } from "./refusal.js";
import { Score } from "./score.js";
import { Settings } from "./settings.js";
import { Transcript } from "./transcript.js";
import { duration, stopwatch, wordsFor, wordsForMicrophone } from "./words.js";

/** @typedef {import("./session.js").State} State */

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
function part(id, kind) {
  const element = document.getElementById(id);
  if (!(element instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return element;
}

const clock = () => performance.now();

/** @type {import("./session.js").Surroundings} */
const AROUND = {
  open: (url) => new WebSocket(url),
  clock,
  after: (ms, then) => {
    const timer = setTimeout(then, ms);
    return () => clearTimeout(timer);
  },
  random: Math.random,
  explain: (url) => explain(url),
};

/** What is noted beside the words of a call. */
const DEVICE_NOTES = {
  microphone: "The microphone has gone, and there is no other one. You are not heard until one is plugged in.",
  heard: "There is a microphone again. You are heard.",
  clip: "The recorded voice could not be fetched.",
};

/** How long the words of a return stay. */
const RETURN_MS = 10_000;

class Page {
  constructor() {
    this._talk = part("talk", HTMLButtonElement);
    this._mute = part("mute", HTMLButtonElement);
    this._save = part("save", HTMLButtonElement);
    this._clip = part("clip", HTMLButtonElement);
    this._elapsed = part("elapsed", HTMLSpanElement);
    this._levels = [part("level-you", HTMLSpanElement), part("level-reply", HTMLSpanElement)];
    this._score = new Score(part("score", HTMLCanvasElement));
    this._transcript = new Transcript(part("transcript-section", HTMLElement), part("transcript", HTMLElement), clock);
    this._panel = new Panel({
      panel: part("latency", HTMLDetailsElement),
      list: part("numbers", HTMLElement),
      plot: part("plot", HTMLCanvasElement),
      short: part("mouth-to-ear-short", HTMLSpanElement),
    });
    /** @type {Settings | null} */
    this._settings = null;
    /** @type {Call | null} */
    this._call = null;
    /** The call whose recording is known to be full. @type {Call | null} */
    this._fullCall = null;
    /** @type {import("./words.js").Words | null} */
    this._trouble = null;
    /** How loud both sides are now. @type {[number, number]} */
    this._loud = [0, 0];
    this._liveSinceMs = 0;
    this._startedMs = 0;
    this._isStopped = false;
    /** @type {WakeLockSentinel | null} */
    this._awake = null;
  }

  async begin() {
    this._talk.addEventListener("click", () => this._pressed(false));
    this._clip.addEventListener("click", () => this._pressedClip());
    this._mute.addEventListener("click", () => this._toggleMute());
    this._save.addEventListener("click", () => this._saveRecording());
    document.addEventListener("keydown", (event) => this._key(event));
    document.addEventListener("visibilitychange", () => this._looked());
    navigator.mediaDevices?.addEventListener("devicechange", () => this._call?.devicesChanged());
    for (const event of ["online", "pageshow", "pointerdown"]) addEventListener(event, () => this._call?.hurry());
    addEventListener("pagehide", () => void this._call?.end());
    setInterval(() => this._show(), 500);
    this._show();
    this._settings = new Settings(
      {
        dialog: part("settings", HTMLDialogElement),
        body: part("settings-body", HTMLElement),
        reset: part("settings-reset", HTMLButtonElement),
        note: part("settings-note", HTMLElement),
      },
      {
        onParameters: (values) => this._call?.session.set(values),
        onMicrophone: (deviceId) => void this._call?.changeMicrophone(deviceId),
        onModel: (model) => this._named(model),
      },
    );
    part("settings-open", HTMLButtonElement).addEventListener("click", () => void this._settings?.open());
    await this._settings.ask();
    document.body.dataset["ready"] = "";
  }

  /** @param {import("./parameters.js").Model | null} model */
  _named(model) {
    part("reply-name", HTMLSpanElement).textContent = model?.kind === "codec" ? "Echo" : "Reply";
    this._show();
  }

  get _isCalling() {
    return this._call?.session.isWanted ?? false;
  }

  // What is pressed.

  /** @param {boolean} usesClip */
  async _pressed(usesClip) {
    const call = this._call;
    if (call && (this._isCalling || call.session.state.name === "idle")) {
      if (call.session.state.name === "idle") this._call = null; // it never began
      await call.end();
      this._over();
    } else {
      await this._start(usesClip);
    }
  }

  async _pressedClip() {
    if (this._isCalling) {
      await this._call?.playClip();
    } else {
      this._talk.focus(); // this button goes: who came here with the keyboard must not fall off the page
      await this._pressed(true);
    }
  }

  /** @param {boolean} usesClip */
  async _start(usesClip) {
    this._trouble = null;
    const settings = this._settings;
    const options = {
      url: (/** @type {string} */ format) => chatAddress(settings?.query(format) ?? `ext=1&format=${format}`),
      format: settings?.format ?? "auto",
      deviceId: settings?.deviceId ?? "",
      usesClip,
    };
    const call = new Call(options, AROUND, {
      onState: (state) => this._changed(state),
      onReady: () => this._show(),
      onText: (text) => this._transcript.add(text),
      onLevels: (said, heard) => this._levelled(said, heard),
      onDraining: (seconds) => this._transcript.note(`The server is about to leave; this call may go on for ${seconds} seconds.`),
      onDevices: (problem) => this._devices(problem),
    });
    this._call = call;
    this._clip.dataset["used"] = String(usesClip);
    this._startedMs = clock();
    this._score.clear();
    this._transcript.begin();
    this._panel.begin(() => call.numbers());
    this._show();
    try {
      await call.start();
    } catch (error) {
      if (this._call !== call) return;
      this._panel.stop();
      this._call = null;
      const problem = error instanceof MicrophoneError ? error.problem : "unknown";
      if (problem === "unknown") console.warn(error);
      this._trouble = wordsForMicrophone(problem, location.host);
      this._show();
    }
  }

  _toggleMute() {
    if (!this._call) return;
    this._call.isMuted = !this._call.isMuted;
    this._mute.setAttribute("aria-pressed", String(this._call.isMuted));
    this._show();
  }

  _saveRecording() {
    const recorder = this._call?.recorder;
    if (!recorder?.frames) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(recorder.wav());
    link.download = `antiphon-${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.wav`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const isTyping = event.target instanceof Element && event.target.closest("input, select, textarea, dialog");
    if (event.key.toLowerCase() !== "m" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (this._isCalling) this._toggleMute();
  }

  _looked() {
    if (document.hidden) return;
    this._call?.hurry();
    void this._stayAwake();
  }

  // What becomes of it.

  /** @param {State} state */
  _changed(state) {
    if (state.name === "live") {
      this._liveSinceMs = clock();
      if (state.isReturning) {
        this._transcript.note("The connection was lost. What was said before is forgotten.");
      } else {
        this._startedMs = this._liveSinceMs; // waiting was no talk
        this._transcript.begin();
      }
      void this._stayAwake();
    }
    if (state.name === "ended" || state.name === "failed") this._over();
    this._show();
  }

  /** @param {"microphone" | "heard" | "clip" | "stopped" | "running"} news */
  _devices(news) {
    if (news === "stopped" || news === "running") this._isStopped = news === "stopped" && this._isCalling;
    else this._transcript.note(DEVICE_NOTES[news]);
    this._show();
  }

  _over() {
    this._panel.stop();
    this._isStopped = false;
    this._mute.setAttribute("aria-pressed", "false");
    this._levelled(0, 0);
    void this._awake?.release();
    this._awake = null;
    this._show();
  }

  get _isKeptAwake() {
    return this._awake?.released === false;
  }

  /** A phone that locks its screen stops the call. */
  async _stayAwake() {
    if (!this._isCalling || document.hidden || !navigator.wakeLock || this._isKeptAwake) return;
    try {
      const awake = await navigator.wakeLock.request("screen");
      // The call may have ended meanwhile, or another one of these was quicker.
      if (this._isCalling && !this._isKeptAwake) this._awake = awake;
      else await awake.release();
    } catch {
      // An empty battery, or a browser that does not want to: the call goes on as long as it may.
    }
  }

  /**
   * @param {number} said
   * @param {number} heard
   */
  _levelled(said, heard) {
    this._levels[0]?.style.setProperty("--level", said.toFixed(3));
    this._levels[1]?.style.setProperty("--level", heard.toFixed(3));
    if (this._isCalling) this._score.push(said, heard);
    this._loud = [said, heard];
  }

  // What is shown.

  _show() {
    const session = this._call?.session;
    /** @type {State} */
    const state = session?.state ?? { name: "idle" };
    const words = this._words(state);
    const isOpening = this._call !== null && state.name === "idle";
    const isCalling = this._isCalling || isOpening;
    const body = document.body.dataset;
    body["phase"] = isCalling ? "call" : this._call ? "after" : "idle";
    body["state"] = this._trouble ? "failed" : isOpening ? "opening" : state.name;
    if (words.isTrouble) body["trouble"] = "";
    else delete body["trouble"];
    write(part("status", HTMLElement), words.line);
    const help = part("help", HTMLElement);
    // A countdown is to be looked at: read out, it would say a number every second.
    help.setAttribute("aria-live", ["lost", "full", "limited"].includes(state.name) ? "off" : "polite");
    write(help, words.help);
    write(this._talk, this._label(state, isCalling));
    this._mute.hidden = !isCalling;
    this._save.hidden = !this._call?.recorder.frames;
    if (this._call?.recorder.isFull && this._fullCall !== this._call) {
      this._fullCall = this._call;
      this._transcript.note(`The recording is full: its first ${duration(LONGEST_S)} can be saved. The call goes on.`);
    }
    this._clip.hidden = isCalling && this._clip.dataset["used"] !== "true";
    write(this._clip, isCalling ? "Play the recorded voice again" : "No microphone? Let a recorded voice speak");
    if (isCalling && state.name !== "live") this._clip.hidden = true;
    this._elapsed.hidden = state.name !== "live";
    write(this._elapsed, stopwatch((clock() - this._startedMs) / 1000));
    this._levels.forEach((level, side) => {
      level.setAttribute("aria-valuenow", String(Math.round(100 * (this._loud[side] ?? 0))));
    });
  }

  /** @param {State} state */
  _words(state) {
    if (this._trouble) return this._trouble;
    if (this._call && state.name === "idle") {
      return { line: "Opening the microphone…", help: "Your browser may ask for permission.", isTrouble: false };
    }
    if (this._isStopped) {
      return { line: "The system has stopped the sound.", help: "Touch the page to go on.", isTrouble: true };
    }
    if (state.name === "live") {
      if (this._call?.isMuted) {
        return { line: "You are muted.", help: "The call goes on; nobody hears you.", isTrouble: false };
      }
      if (clock() - this._liveSinceMs > RETURN_MS) return wordsFor({ name: "live", isReturning: false }, clock());
    }
    const words = wordsFor(state, clock());
    const isIdle = state.name === "idle" || (state.name === "ended" && state.reason === "us");
    return isIdle && !words.help ? { ...words, help: this._introduction(state.name === "ended") } : words;
  }

  /** @param {boolean} isAfter */
  _introduction(isAfter) {
    if (isAfter) return this._call?.recorder.frames ? "The recording can be saved until you start again." : "";
    if (this._settings?.model?.kind === "codec") {
      return "This server runs an echo: your voice goes through its codec and comes back, a moment later.";
    }
    return "You are heard in pieces of 80 milliseconds, and each is answered before the next is due.";
  }

  /**
   * @param {State} state
   * @param {boolean} isCalling
   */
  _label(state, isCalling) {
    if (!isCalling) return this._call || this._trouble ? "Start again" : "Start talking";
    return state.name === "live" ? "End" : "Cancel";
  }
}

/**
 * Change a text only where it differs, so that screen readers say it once.
 *
 * @param {HTMLElement} element
 * @param {string} text
 */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {string} query */
function chatAddress(query) {
  const url = new URL(`api/chat?${query}`, document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  return url.href;
}

void new Page().begin();
