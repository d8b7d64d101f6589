/** A test of the microphone in the settings: how loud it is, until it is stopped. */

import { loudness } from "./loudness.js";
import { MicrophoneError, openMicrophone } from "./microphone.js";
import { wordsForMicrophone } from "./words.js";

const SAMPLES = 1024;
const VOICE = 0.5;

/** A button, a meter and a line of words; `stop` gives the microphone back. */
export class MicrophoneTest {
  /** @param {() => string} deviceId the microphone that is chosen */
  constructor(deviceId) {
    this._deviceId = deviceId;
    this.element = document.createElement("div");
    this.element.className = "microphone-test voice-you";
    this._button = document.createElement("button");
    this._button.type = "button";
    this._button.className = "second";
    this._meter = document.createElement("span");
    this._meter.className = "level wide";
    this._words = document.createElement("p");
    this._words.className = "note";
    this._words.setAttribute("role", "status");
    this.element.append(this._button, this._meter, this._words);
    this._button.addEventListener("click", () => void (this._stop ? this.stop() : this._start()));
    /** @type {(() => void) | null} */
    this._stop = null;
    this._show("");
  }

  /** Give the microphone back. */
  stop() {
    this._stop?.();
    this._stop = null;
    this._show("");
  }

  /** @param {string} words */
  _show(words) {
    this._button.textContent = this._stop ? "Stop the test" : "Test the microphone";
    this._meter.hidden = !this._stop;
    if (this._words.textContent !== words) this._words.textContent = words;
  }

  async _start() {
    let isOver = false;
    /** What gives back what was opened. @type {(() => void)[]} */
    const opened = [];
    const close = () => {
      isOver = true;
      for (const giveBack of opened) giveBack();
    };
    this._stop = close;
    this._show("Opening the microphone…");
    try {
      const stream = await openMicrophone(this._deviceId());
      opened.push(() => stream.getTracks().forEach((track) => track.stop()));
      if (isOver) return close(); // stopped before the browser's question was answered
      const context = new AudioContext();
      opened.push(() => void context.close());
      const analyser = new AnalyserNode(context, { fftSize: SAMPLES });
      context.createMediaStreamSource(stream).connect(analyser);
      const block = new Float32Array(SAMPLES);
      const timer = setInterval(() => {
        analyser.getFloatTimeDomainData(block);
        this._look(block);
      }, 50);
      opened.push(() => clearInterval(timer));
      this._show("Say something.");
    } catch (error) {
      if (isOver) return; // another test may be under way
      close();
      this._stop = null;
      const { line, help } = wordsForMicrophone(error instanceof MicrophoneError ? error.problem : "unknown", location.host);
      this._show(`${line} ${help}`);
    }
  }

  /** @param {Float32Array} samples */
  _look(samples) {
    const level = loudness(samples);
    this._meter.style.setProperty("--level", level.toFixed(3));
    if (level > VOICE) this._show("It hears you.");
  }
}
