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
    this._stop = () => void (isOver = true);
    this._show("Opening the microphone…");
    try {
      const stream = await openMicrophone(this._deviceId());
      const context = new AudioContext();
      const timer = setInterval(() => this._look(samples()), 50);
      const close = () => {
        clearInterval(timer);
        for (const track of stream.getTracks()) track.stop();
        void context.close();
      };
      const analyser = new AnalyserNode(context, { fftSize: SAMPLES });
      context.createMediaStreamSource(stream).connect(analyser);
      const block = new Float32Array(SAMPLES);
      const samples = () => {
        analyser.getFloatTimeDomainData(block);
        return block;
      };
      if (isOver) return close(); // stopped before the browser's question was answered
      this._stop = close;
      this._show("Say something.");
    } catch (error) {
      this._stop = null;
      const { line, help } = wordsForMicrophone(error instanceof MicrophoneError ? error.problem : "unknown", location.host);
      if (!isOver) this._show(`${line} ${help}`);
    }
  }

  /** @param {Float32Array} samples */
  _look(samples) {
    const level = loudness(samples);
    this._meter.style.setProperty("--level", level.toFixed(3));
    if (level > VOICE) this._show("It hears you.");
  }
}
