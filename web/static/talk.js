/** The view of a conversation: what is pressed becomes a call, and what becomes of the call is shown. */

import { Awake } from "./awake.js";
import { Call } from "./call.js";
import { Chips } from "./chips.js";
import { Hold, HOLD_KEY } from "./hold.js";
import { isTyping } from "./keyhelp.js";
import { LastCall } from "./lastcall.js";
import { MicrophoneError } from "./microphone.js";
import { Ongoing } from "./ongoing.js";
import { clock, copy, download, fileName, headline, part, socketAddress, write } from "./page.js";
import { Panel } from "./panel.js";
import { modelsOf, PATHS } from "./parameters.js";
import { ANY_QUESTION } from "./questions.js";
import { Recogniser } from "./recogniser.js";
import { LONGEST_S } from "./recorder.js";
import { explain } from "./refusal.js";
import { Score } from "./score.js";
import { wordsForTalk } from "./talkwords.js";
import { Transcript } from "./transcript.js";
import { Turns } from "./turns.js";
import { offer, OWN_VOICE, voicesOf } from "./voices.js";
import { duration, stopwatch, wordsForLeaving, wordsForMicrophone } from "./words.js";

/** @typedef {import("./session.js").State} State */

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

/** A look so often: a stall is to be shown within a second. */
const SHOW_MS = 200;

export class Talk {
  /**
   * @param {import("./settings.js").Settings} settings
   * @param {import("./about.js").About} about keeps what happened
   */
  constructor(settings, about) {
    this._settings = settings;
    this._about = about;
    this._talk = part("talk", HTMLButtonElement);
    this._mute = part("mute", HTMLButtonElement);
    this._hold = new Hold(part("hold", HTMLButtonElement), (isHeld) => this._held(isHeld));
    /** Whether the caller was muted before the button was held. */
    this._wasMuted = false;
    this._microphoneOn = part("microphone-on", HTMLButtonElement);
    this._tryNow = part("try-now", HTMLButtonElement);
    this._elapsed = part("elapsed", HTMLSpanElement);
    this._ongoing = new Ongoing();
    this._notice = part("notice", HTMLElement);
    this._levels = [part("level-you", HTMLSpanElement), part("level-reply", HTMLSpanElement)];
    this._score = new Score(part("score", HTMLCanvasElement));
    this._transcript = new Transcript(part("transcript-section", HTMLElement), part("transcript", HTMLElement), clock);
    this._voice = part("talk-voice", HTMLSelectElement);
    const more = part("chips-more", HTMLButtonElement);
    this._chips = new Chips(part("chips", HTMLElement), more, (text, recording) => void this._ask(text, recording));
    this._last = new LastCall();
    this._panel = new Panel({
      panel: part("latency", HTMLDetailsElement),
      list: part("numbers", HTMLElement),
      plot: part("plot", HTMLCanvasElement),
      short: part("mouth-to-ear-short", HTMLSpanElement),
      quality: part("quality", HTMLSpanElement),
    });
    /** @type {Call | null} */
    this._call = null;
    /** Writes down what is said here, where the server has a recogniser. @type {Recogniser | null} */
    this._ears = null;
    /** The call whose recording is known to be full. @type {Call | null} */
    this._fullCall = null;
    /** @type {import("./words.js").Words | null} */
    this._trouble = null;
    /** The question that a recorded voice asks now. @type {string | null} */
    this._asked = null;
    this._turns = new Turns();
    /** How loud both sides are now. @type {[number, number]} */
    this._loud = [0, 0];
    this._liveSinceMs = 0;
    /** When the server that leaves ends the call. @type {number | null} */
    this._leavesMs = null;
    this._isStopped = false;
    this._isStarting = false;
    this._awake = new Awake(() => this.isCalling);
    this.isShown = false;
  }

  begin() {
    // The second click of a double click would end what the first began.
    this._talk.addEventListener("click", ({ detail }) => detail < 2 && void this._pressed());
    this._mute.addEventListener("click", () => this._setMuted(!this._call?.isMuted));
    this._microphoneOn.addEventListener("click", () => void this._useMicrophone());
    this._hold.begin();
    this._tryNow.addEventListener("click", () => this._call?.session.tryNow());
    this._ongoing.begin(() => void this._hangUp());
    this._voice.addEventListener("change", () => this._settings.keepVoice("talk", this._voice.value));
    this._last.begin();
    const copyButton = part("transcript-copy", HTMLButtonElement);
    copyButton.addEventListener("click", () => void copy(copyButton, this._transcript.text));
    part("transcript-save", HTMLButtonElement).addEventListener("click", () =>
      download(new Blob([this._transcript.text], { type: "text/plain" }), fileName(".txt")),
    );
    document.addEventListener("keydown", (event) => this._key(event, true));
    document.addEventListener("keyup", (event) => this._key(event, false));
    document.addEventListener("visibilitychange", () => this._looked());
    navigator.mediaDevices?.addEventListener("devicechange", () => this._call?.devicesChanged());
    for (const event of ["online", "pageshow", "pointerdown"]) addEventListener(event, () => this._call?.hurry());
    addEventListener("pagehide", () => void this._call?.end());
    setInterval(() => this.show(), SHOW_MS);
  }

  /** The model of the next call is known, or another one. */
  named() {
    const { model } = this._settings;
    const isEcho = model?.kind === "codec";
    this._transcript.names.reply = isEcho ? "Echo" : (model?.name ?? "Reply");
    write(part("reply-name", HTMLSpanElement), isEcho ? "Echo" : "Reply");
    write(part("model-name", HTMLElement), model?.name ?? "");
    write(part("model-about", HTMLElement), model?.card?.description ?? "");
    part("model-line", HTMLElement).hidden = !model;
    offer(part("talk-voice-field", HTMLElement), this._voice, voicesOf(model, OWN_VOICE), this._settings.voice("talk"));
    const examples = model?.card?.examples ?? [];
    this._chips.show(examples.length ? examples : [ANY_QUESTION]);
    write(part("chips-title", HTMLElement), isEcho ? "No microphone? Send a recorded voice:" : "Ask, or let a recorded voice ask:");
    this.show();
  }

  /** A call is going on, in this view or behind another one. */
  get isCalling() {
    return this._call?.session.isWanted ?? false;
  }

  /** @param {import("./parameters.js").Values} values heard in the call that goes on */
  set(values) {
    this._call?.session.set(values);
  }

  /** @param {string} deviceId */
  async changeMicrophone(deviceId) {
    await this._call?.changeMicrophone(deviceId);
  }

  /** Another view is shown: the call continues. */
  leave() {
    this._hold.set(false);
    this._last.pause();
  }

  // What is pressed.

  async _pressed() {
    if (!(await this._hangUp())) await this._start(null, null);
  }

  /** End a call that goes on, or whose devices are being opened. @returns {Promise<boolean>} whether there was one */
  async _hangUp() {
    const call = this._call;
    if (!call || !(this.isCalling || call.session.state.name === "idle")) return false;
    if (call.session.state.name === "idle") this._call = null; // it never began
    await call.end();
    this._over();
    return true;
  }

  /** @param {string} text @param {URL} recording */
  async _ask(text, recording) {
    this._asked = text;
    if (this.isCalling) {
      await this._call?.ask(recording);
    } else {
      this._talk.focus(); // the chips wait now: who came here with the keyboard must not fall off the page
      await this._start(text, recording);
    }
  }

  /** @param {string | null} text @param {URL | null} clip */
  async _start(text, clip) {
    if (this._isStarting || !(await this._last.mayGoOn())) return;
    this._isStarting = true;
    this._trouble = null;
    this._asked = text;
    const settings = this._settings;
    const options = {
      url: (/** @type {string} */ format) => socketAddress(`api/chat?${settings.query(format)}`),
      format: settings.format,
      deviceId: settings.deviceId,
      clip,
      prepared: settings.ask(), // the server may have been started anew, with another model
    };
    const call = new Call(options, AROUND, {
      onState: (state) => this._changed(state),
      onReady: () => this._ready(),
      onText: (piece) => this._transcript.add("reply", piece),
      onWordHeard: (word) => this._asked || this._transcript.add("you", ` ${word}`),
      onTool: (tool) => this._transcript.note(`It calls ${tool}.`),
      onLevels: (said, heard) => this._levelled(said, heard),
      onSaid: (samples) => this._asked || this._ears?.push(samples), // a recorded question is known already
      onQuestion: (question) => this._questioned(question),
      onDraining: (seconds) => this._leaves(seconds),
      onDevices: (problem) => this._devices(problem),
    });
    this._call = call;
    this._ongoing.isNews = false;
    call.isMuted = settings.holdsToTalk;
    this._turns = new Turns();
    this._score.clear();
    this._transcript.begin();
    this._note("");
    this._last.replace(call.recorder);
    this._panel.begin(() => call.numbers());
    this._about.log(clip ? "call with a recorded voice" : "call");
    this.show();
    try {
      await call.start();
    } catch (error) {
      if (this._call === call) this._notStarted(error);
    } finally {
      this._isStarting = false;
    }
  }

  /** @param {unknown} error */
  _notStarted(error) {
    this._panel.hide();
    this._call = null;
    this._asked = null;
    const problem = error instanceof MicrophoneError ? error.problem : "unknown";
    if (problem === "unknown") console.warn(error);
    this._about.log(`not started: ${problem}`);
    this._trouble = wordsForMicrophone(problem, location.host);
    this.show();
  }

  /** Heard while it is held; then muted again, where the caller was. @param {boolean} isHeld */
  _held(isHeld) {
    if (isHeld) this._wasMuted = this._call?.isMuted ?? false;
    this._setMuted(!isHeld && this._wasMuted);
  }

  /** The microphone takes part in a call that a recorded question began. */
  async _useMicrophone() {
    const call = this._call;
    this._microphoneOn.disabled = true;
    try {
      await call?.openMicrophone();
      if (call) call.isMuted = this._settings.holdsToTalk && !this._hold.isHeld;
      if (call === this._call && this.isCalling) {
        this._listen();
        this._note("");
      }
      this._talk.focus();
    } catch (error) {
      const { line, help } = wordsForMicrophone(error instanceof MicrophoneError ? error.problem : "unknown", location.host);
      if (call === this._call && this.isCalling) this._note(`${line} ${help}`);
    }
    this._microphoneOn.disabled = false;
    this.show();
  }

  /** @param {boolean} isMuted */
  _setMuted(isMuted) {
    if (!this._call?.hasMicrophone) return;
    this._call.isMuted = isMuted;
    this.show();
  }

  /** @param {KeyboardEvent} event @param {boolean} isDown */
  _key(event, isDown) {
    const key = event.key.toLowerCase();
    if (key === HOLD_KEY && !isDown) this._hold.set(false); // wherever it is let go
    if (!isDown || event.repeat || isTyping(event) || !this._settings.hasKeys || !this.isShown || !this.isCalling) return;
    if (key === HOLD_KEY) this._hold.set(true);
    else if (key === "m") this._setMuted(!this._call?.isMuted);
  }

  _looked() {
    if (document.hidden) return;
    this._call?.hurry();
    void this._awake.stay();
  }

  // What becomes of it.

  /** @param {State} state */
  _changed(state) {
    this._about.log("reason" in state ? `${state.name}: ${state.reason}` : state.name);
    if (this._leavesMs !== null) this._note(""); // it has left, or the call is elsewhere
    if (state.name === "live") {
      this._liveSinceMs = clock();
      if (state.isResumed) this._transcript.note("The connection was lost for a moment.");
      else if (state.isReturning) this._transcript.note("The connection was lost. This is a new conversation.");
      else this._last.talks();
      void this._awake.stay();
    } else {
      this._deafen();
    }
    if (state.name === "ended" || state.name === "failed") this._over();
    this.show();
  }

  /** A conversation begins. */
  _ready() {
    this._deafen();
    if (this._call?.hasMicrophone) this._listen();
    this.show();
  }

  /** What the caller says is written down where the server can; a recorded question is known already. */
  _listen() {
    const recogniser = modelsOf(this._settings.all, PATHS.transcribe)[0];
    if (recogniser && this._settings.model?.kind === "duplex") {
      const query = new URLSearchParams({ model: recogniser.name, ...(this._settings.key && { auth_id: this._settings.key }) });
      this._ears = new Recogniser(socketAddress(`api/asr-streaming?${query}`), {
        onReady: () => {},
        onWord: (word) => this._transcript.add("you", ` ${word.text.trim()}`),
        onWordEnd: () => {},
        onEnd: (message) => message && this._about.log(`your words are not written down: ${message}`),
      });
    }
  }

  _deafen() {
    this._ears?.close();
    this._ears = null;
  }

  /** @param {URL | null} question */
  _questioned(question) {
    if (question && this._asked) this._transcript.turn("you", this._asked);
    if (!question) this._asked = null;
    this.show();
  }

  /** @param {"microphone" | "heard" | "clip" | "stopped" | "running"} news */
  _devices(news) {
    if (news === "stopped" || news === "running") this._isStopped = news === "stopped" && this.isCalling;
    else this._note(DEVICE_NOTES[news]);
    this.show();
  }

  /** @param {string} text what has to be known besides the state; "" for nothing */
  _note(text) {
    this._leavesMs = null;
    this._notice.setAttribute("aria-live", "polite");
    write(this._notice, text);
    this._notice.hidden = !text;
    if (text) this._about.log(text);
  }

  /** @param {number} seconds that the call may continue */
  _leaves(seconds) {
    this._note(wordsForLeaving(1000 * seconds));
    this._leavesMs = clock() + 1000 * seconds;
  }

  /** Count down, which is not read out. */
  _showLeaving() {
    if (this._leavesMs === null) return;
    const text = wordsForLeaving(this._leavesMs - clock());
    if (this._notice.textContent !== text) this._notice.setAttribute("aria-live", "off");
    write(this._notice, text);
  }

  _over() {
    this._panel.stop();
    this._deafen();
    this._isStopped = false;
    this._asked = null;
    this._hold.set(false);
    this._note("");
    this._levelled(0, 0);
    this._awake.release();
    this._ongoing.isNews = !this.isShown;
    this._sumUp();
    this.show();
  }

  /** What was said can be heard again, and is summed up. */
  _sumUp() {
    const call = this._call;
    if (!call) return;
    const transcript = this._transcript;
    const [said, heard] = [transcript.words("you"), transcript.words("reply")];
    const { typicalMs } = this._panel;
    this._last.sumUp(call.recorder, { said, heard, name: transcript.names.reply, typicalMs, gaps: call.numbers().gaps });
  }

  /**
   * @param {number} said
   * @param {number} heard
   */
  _levelled(said, heard) {
    this._levels[0]?.style.setProperty("--level", said.toFixed(3));
    this._levels[1]?.style.setProperty("--level", heard.toFixed(3));
    if (this.isCalling) this._score.push(said, heard);
    this._turns.hear(said, heard, clock());
    this._loud = [said, heard];
  }

  // What is shown.

  show() {
    this._ongoing.show(this.isShown, this.isCalling, this._last.seconds);
    this._showLeaving();
    if (!this.isShown) return;
    /** @type {State} */
    const state = this._call?.session.state ?? { name: "idle" };
    const isOpening = this._call !== null && state.name === "idle";
    const isCalling = this.isCalling || isOpening;
    const body = document.body.dataset;
    body["phase"] = isCalling ? "call" : this._call ? "after" : "idle";
    body["state"] = this._trouble ? "failed" : isOpening ? "opening" : state.name;
    // A countdown is to be looked at: read out, it would say a number every second.
    const counts = state.name === "lost" || state.name === "full" || state.name === "limited";
    part("help", HTMLElement).setAttribute("aria-live", counts ? "off" : "polite");
    headline(this._words(state));
    write(this._talk, this._label(state, isCalling));
    this._tryNow.hidden = !counts;
    this._showMute(isCalling && !counts);
    this._last.show(isCalling);
    if (this._call?.recorder.isFull && this._fullCall !== this._call) {
      this._fullCall = this._call;
      this._note(`The recording is full: its first ${duration(LONGEST_S)} can be saved. The call continues.`);
    }
    const isFree = !isOpening && !this._asked && (!isCalling || state.name === "live");
    this._chips.update(isFree, this._asked);
    this._elapsed.hidden = !isCalling || isOpening;
    write(this._elapsed, stopwatch(this._last.seconds));
    this._levels.forEach((level, side) => {
      level.setAttribute("aria-valuenow", String(Math.round(100 * (this._loud[side] ?? 0))));
    });
  }

  /** @param {boolean} isTalk on, or about to be */
  _showMute(isTalk) {
    const isMuted = this._call?.isMuted ?? false;
    const isHeard = isTalk && (this._call?.hasMicrophone ?? false);
    this._mute.hidden = part("hold", HTMLButtonElement).hidden = !isHeard;
    this._microphoneOn.hidden = !isTalk || isHeard || this._call?.session.state.name !== "live";
    this._mute.classList.toggle("is-muted", isMuted && isTalk);
    write(part("mute-label", HTMLElement), isMuted ? "Unmute" : "Mute");
  }

  /** @param {State} state */
  _words(state) {
    if (this._trouble) return this._trouble;
    const call = this._call;
    const nowMs = clock();
    return wordsForTalk(state, nowMs, {
      needsKey: this._settings.needsKey && !this.isCalling,
      openingMs: call && state.name === "idle" ? 1000 * this._last.seconds : null,
      stage: call?.stage ?? "sound",
      isStopped: this._isStopped,
      silentMs: call?.silentMs ?? 0,
      hasMicrophone: call?.hasMicrophone ?? false,
      isMuted: call?.isMuted ?? false,
      isHeld: this._hold.isHeld,
      holdsToTalk: this._settings.holdsToTalk,
      asked: this._asked,
      speaker: this._turns.speaker,
      hasBegun: this._turns.hasBegun,
      quality: this._panel.quality,
      offersPeers: this._settings.offersPeers,
      delayMs: this._panel.delayMs,
      liveMs: nowMs - this._liveSinceMs,
      isEcho: this._settings.model?.kind === "codec",
      summary: this._last.summary,
    });
  }

  /**
   * @param {State} state
   * @param {boolean} isCalling
   */
  _label(state, isCalling) {
    if (!isCalling) return this._call?.recorder.frames ? "Start again" : this._call || this._trouble ? "Try again" : "Start talking";
    return state.name === "live" ? "End" : "Cancel";
  }
}
