/** The view that writes down what is said: live from the microphone, or from a file that is dropped on it. */

import { asSrt, asText, lines, pauseBefore, textOf } from "./captions.js";
import { chip, fill } from "./chips.js";
import { SAMPLE_RATE } from "./codecs.js";
import { loudness } from "./loudness.js";
import { MicrophoneError, openMicrophone } from "./microphone.js";
import { copy, download, fileName, headline, part, socketAddress, write } from "./page.js";
import { modelsOf, PATHS } from "./parameters.js";
import { STALL_MS } from "./quality.js";
import { QUESTIONS, recordingOf } from "./questions.js";
import { Recogniser } from "./recogniser.js";
import { Resampler } from "./resample.js";
import { Sound } from "./sound.js";
import { upload } from "./upload.js";
import { sentence, STALLED, stopwatch, wordsForMicrophone } from "./words.js";

/** @typedef {import("./captions.js").Word} Word */

const IDLE = { line: "Speak, and read what you said.", help: "Or have a recording written down.", isTrouble: false };
const CANCELLED = { line: "Cancelled.", help: "", isTrouble: false };

/** A look so often, and after so long without a word from the server it is given up. */
const WATCH_MS = 200;
const GIVE_UP_MS = 10_000;
/** Its words end with their sound: those of the socket end where the next one begins. */
const FILE_PATH = "v1/audio/transcriptions";
const SAMPLES = 3;

export class Transcribe {
  /**
   * @param {import("./settings.js").Settings} settings
   * @param {import("./about.js").About} about
   */
  constructor(settings, about) {
    this._settings = settings;
    this._about = about;
    this._button = part("listen", HTMLButtonElement);
    this._file = part("file", HTMLInputElement);
    this._level = part("level-listen", HTMLElement);
    this._log = part("words", HTMLElement);
    this._progress = part("transcribe-progress", HTMLElement);
    this._playback = part("listen-playback", HTMLAudioElement);
    /** Of the file that is read. @type {AbortController | null} */
    this._reading = null;
    /** @type {Word[]} */
    this._words = [];
    /** @type {Sound | null} */
    this._sound = null;
    /** @type {Recogniser | null} */
    this._recogniser = null;
    /** The recording that the words are of; "" for the microphone. */
    this._source = "";
    this._headline = IDLE;
    this._isBusy = false;
    /** Counts transcriptions: what comes of one that was left changes nothing. */
    this._run = 0;
    this.isShown = false;
  }

  begin() {
    this._button.addEventListener("click", () => void this._pressed());
    // What this browser cannot play has no player.
    this._playback.addEventListener("error", () => {
      this._forgetPlayback();
      this.show();
    });
    this._file.addEventListener("change", () => this._file.files?.[0] && void this._read(this._file.files[0]));
    for (const name of ["dragover", "dragleave", "drop"]) {
      document.addEventListener(name, (event) => {
        if (this.isShown) event.preventDefault();
        part("drop", HTMLElement).classList.toggle("is-over", name === "dragover");
      });
    }
    document.addEventListener("drop", (event) => {
      const file = event.dataTransfer?.files[0];
      if (this.isShown && file && !this._isBusy) void this._read(file);
    });
    const samples = QUESTIONS.slice(0, SAMPLES).map((text) => chip(text, () => void this._readSample(text)));
    fill(part("samples", HTMLElement), samples);
    setInterval(() => this._watch(), WATCH_MS);
    const copyButton = part("words-copy", HTMLButtonElement);
    copyButton.addEventListener("click", () => void copy(copyButton, asText(this._words)));
    for (const [id, make, suffix] of /** @type {const} */ ([["words-txt", asText, ".txt"], ["words-srt", asSrt, ".srt"]])) {
      part(id, HTMLButtonElement).addEventListener("click", () =>
        download(new Blob([make(this._words)], { type: "text/plain" }), this._fileName(suffix)),
      );
    }
  }

  named() {
    write(part("listen-model", HTMLElement), this._model?.name ?? "");
    write(part("listen-about", HTMLElement), this._model?.card?.description ?? "");
  }

  show() {
    if (!this.isShown) return;
    const body = document.body.dataset;
    body["phase"] = this._isBusy ? "call" : this._words.length ? "after" : "idle";
    body["state"] = this._recogniser ? "listening" : this._isBusy ? "reading" : "idle";
    headline(this._isStalled ? STALLED : this._headline);
    write(this._button, this._recogniser ? "Stop" : this._isBusy ? "Cancel" : "Start listening");
    part("offers", HTMLElement).hidden = this._isBusy;
    this._progress.hidden = this._reading === null;
    this._playback.hidden = !this._playback.src || this._isBusy;
    part("level-listen-box", HTMLElement).hidden = !this._recogniser;
    part("words-section", HTMLElement).hidden = this._words.length === 0;
    write(part("words-source", HTMLElement), this._source);
  }

  /** The name for a file of the words: the recording's, where there is one. @param {string} suffix */
  _fileName(suffix) {
    return this._source ? this._source.replace(/\.[^.]*$/, "") + suffix : fileName(suffix);
  }

  async leave() {
    if (this._isBusy) await this._cancel(IDLE);
    this._playback.pause();
  }

  /** Begin, end what listens, or give up what is read or opened. */
  async _pressed() {
    if (this._recogniser) await this._finish();
    else if (this._isBusy) await this._cancel(CANCELLED);
    else await this._listen();
  }

  /** What was written down stays. @param {import("./words.js").Words} words where nothing was */
  async _cancel(words) {
    await this._over(this._words.length ? done(this._words) : words);
  }

  get _model() {
    return modelsOf(this._settings.all, PATHS.transcribe)[0] ?? null;
  }

  /** Whether a server that hears says nothing. */
  get _isStalled() {
    return this._recogniser !== null && this._recogniser.isReady && this._recogniser.silentMs > STALL_MS;
  }

  /** The query of a connection. */
  get _query() {
    const { key } = this._settings;
    return new URLSearchParams({ ...(this._model && { model: this._model.name }), ...(key && { auth_id: key }) }).toString();
  }

  // Live.

  async _listen() {
    const run = this._began();
    this._say({ line: "Opening the microphone…", help: "Your browser may ask for permission.", isTrouble: false });
    /** @type {MediaStream | null} */
    let microphone = null;
    try {
      microphone = await openMicrophone(this._settings.deviceId);
      if (run !== this._run) return close(microphone); // the visitor may have left before the browser's question was answered
      /** @type {Resampler | null} */
      let rate = null;
      const sound = await Sound.open((block) => {
        rate ??= new Resampler(this._sound?.sampleRate ?? SAMPLE_RATE, SAMPLE_RATE);
        this._recogniser?.push(rate.feed(block.said));
        this._level.style.setProperty("--level", loudness(block.said).toFixed(3));
      });
      sound.useMicrophone(microphone);
      if (run !== this._run) return void (await sound.close());
      this._sound = sound;
    } catch (error) {
      if (microphone) close(microphone);
      if (run === this._run) await this._over(wordsForMicrophone(error instanceof MicrophoneError ? error.problem : "unknown", location.host));
      return;
    }
    this._recogniser = new Recogniser(socketAddress(`api/asr-streaming?${this._query}`), {
      onReady: () => this._say({ line: "Go ahead, it is listening.", help: "Your words appear while you speak.", isTrouble: false }),
      onWord: (word) => run === this._run && this._add(word),
      onWordEnd: () => {},
      onEnd: (message) => run === this._run && void this._over(message ? trouble(message) : done(this._words)),
    });
    this._say({ line: "Connecting…", help: "", isTrouble: false });
  }

  /** A server that stands still is shown, and given up after a while; what was written stays. */
  _watch() {
    const recogniser = this._recogniser;
    if (!recogniser) return;
    if (recogniser.silentMs < GIVE_UP_MS) return this.show();
    const help = this._words.length ? "What was written down stays. Press the button to begin again." : "Press the button to try again.";
    void this._over({ line: "The server does not answer.", help, isTrouble: true });
  }

  /** The words that are still on their way come before the end; pressed again, they are not waited for. */
  async _finish() {
    const sound = this._sound;
    if (!sound) return this._recogniser?.close();
    this._sound = null;
    this._recogniser?.finish();
    this._say({ line: "Writing down the last words…", help: "", isTrouble: false });
    await sound.close();
  }

  // A file.

  /** @param {string} text of a question that a recorded voice asks */
  async _readSample(text) {
    if (this._isBusy) return;
    const run = this._began();
    this._say({ line: "Fetching the recording…", help: "", isTrouble: false });
    try {
      const answer = await fetch(/** @type {URL} */ (recordingOf(text)));
      if (!answer.ok) throw new Error(`the answer was ${answer.status}`);
      const file = new File([await answer.blob()], text);
      if (run === this._run) await this._read(file, run);
    } catch {
      if (run === this._run) await this._over(trouble("the recording could not be fetched"));
    }
  }

  /** @param {File} file @param {number} run which transcription it is */
  async _read(file, run = this._began()) {
    this._file.value = "";
    this._source = file.name;
    this._say({ line: `Sending ${file.name}`, help: "", isTrouble: false });
    const reading = (this._reading = new AbortController());
    this._playback.src = URL.createObjectURL(file);
    const bar = /** @type {HTMLProgressElement} */ (this._progress.firstElementChild);
    const onProgress = (/** @type {number} */ share) => {
      if (run !== this._run) return;
      if (share < 1) bar.value = share;
      else bar.removeAttribute("value");
      if (share === 1) this._say({ line: `Listening to ${file.name}`, help: this._length, isTrouble: false });
    };
    onProgress(0);
    this.show();
    try {
      const answer = await upload(FILE_PATH, formOf(file, this._model), this._settings.key, onProgress, reading.signal);
      if (run !== this._run) return;
      if (answer.status !== 200) throw new Error(reason(answer));
      for (const { word, start, end } of JSON.parse(answer.text).words) this._add({ text: word, startS: start, stopS: end });
      await this._over(done(this._words));
    } catch (error) {
      if (run === this._run) await this._over(trouble(error instanceof Error ? error.message : String(error)));
    }
  }

  /** How much there is to hear, as far as this browser knows it. */
  get _length() {
    const seconds = this._playback.duration;
    return Number.isFinite(seconds) ? `${stopwatch(seconds)} of speech, which the server reads faster than real time.` : "";
  }

  // Both.

  /** @returns {number} which transcription it is */
  _began() {
    this._run += 1;
    this._isBusy = true;
    this._words = [];
    this._source = "";
    this._forgetPlayback();
    this._log.replaceChildren();
    this._about.log("transcription");
    return this._run;
  }

  _forgetPlayback() {
    if (this._playback.src) URL.revokeObjectURL(this._playback.src);
    this._playback.removeAttribute("src");
  }

  /** @param {import("./words.js").Words} words */
  _say(words) {
    this._headline = words;
    this.show();
  }

  /** @param {Word} word */
  _add(word) {
    this._words.push(word);
    const found = lines(this._words);
    const line = found.at(-1) ?? [];
    const last = this._log.lastElementChild;
    if (last && this._log.childElementCount === found.length) {
      const words = last.lastElementChild;
      if (words) words.textContent = textOf(line);
    } else {
      const time = document.createElement("time");
      time.textContent = stopwatch(line[0]?.startS ?? 0);
      const words = document.createElement("span");
      words.textContent = textOf(line);
      const paragraph = document.createElement("p");
      const silentS = pauseBefore(found.at(-2), line);
      if (silentS !== null) paragraph.append(pause(silentS));
      paragraph.append(time, words);
      this._log.append(paragraph);
    }
    this._log.scrollTop = this._log.scrollHeight;
    this.show();
  }

  /** @param {import("./words.js").Words} words */
  async _over(words) {
    this._run += 1;
    this._isBusy = false;
    this._reading?.abort();
    this._recogniser?.close();
    const sound = this._sound;
    this._recogniser = this._reading = this._sound = null;
    this._say(words);
    await sound?.close();
  }
}

/** @param {MediaStream} microphone */
function close(microphone) {
  for (const track of microphone.getTracks()) track.stop();
}

/** @param {number} silentS */
function pause(silentS) {
  const mark = document.createElement("small");
  mark.className = "pause";
  mark.textContent = `a pause of ${Math.round(silentS)} s`;
  return mark;
}

/** @param {Word[]} words @returns {import("./words.js").Words} */
function done(words) {
  if (!words.length) return { line: "No words were heard.", help: "Speak closer to the microphone, or choose another recording.", isTrouble: false };
  return { line: "Written down.", help: "Copy it, or save it as text or subtitles.", isTrouble: false };
}

/** @param {string} message @returns {import("./words.js").Words} */
function trouble(message) {
  const isFull = message.includes("no free channels");
  const help = isFull ? "Every place is taken: try again in a moment." : sentence(message);
  return { line: "This did not work.", help, isTrouble: true };
}

/** @param {import("./upload.js").Answer} answer */
function reason({ isJson, text, status }) {
  if (!isJson) return text.trim() || `the answer was ${status}`;
  const { message, param } = JSON.parse(text).error;
  const isNoRecording = status === 400 && param === "file";
  return isNoRecording ? "it is no recording that the server reads: choose a WAV, MP3, M4A, WebM, FLAC or Ogg file" : String(message);
}

/** @param {File} file @param {import("./parameters.js").Model | null} model */
function formOf(file, model) {
  const form = new FormData();
  form.set("response_format", "verbose_json");
  form.set("timestamp_granularities[]", "word");
  if (model) form.set("model", model.name);
  form.set("file", file);
  return form;
}
