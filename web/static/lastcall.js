/** What is left of a call that is over: its recording, to be heard and saved, and its summary. */

import { clock, part } from "./page.js";
import { canOpus, Saving } from "./saving.js";
import { summaryOf } from "./summary.js";

export class LastCall {
  constructor() {
    this._saving = new Saving();
    this._playback = part("playback", HTMLAudioElement);
    this._startedMs = 0;
    this.summary = "";
  }

  begin() {
    part("save", HTMLButtonElement).addEventListener("click", () => void this._saving.save(false));
    part("save-opus", HTMLButtonElement).addEventListener("click", () => void this._saving.save(true));
    void canOpus().then((can) => void (document.body.dataset["opus"] = String(can)));
  }

  /** Ask about a recording that the next call would replace. @returns {Promise<boolean>} whether to go on */
  mayGoOn() {
    return this._saving.mayGoOn();
  }

  /** A call begins. @param {import("./recorder.js").Recorder} recorder */
  replace(recorder) {
    this._saving.begin(recorder);
    this._startedMs = clock();
    this.summary = "";
    if (this._playback.src) URL.revokeObjectURL(this._playback.src);
    this._playback.removeAttribute("src");
  }

  /** The call talks: waiting was no talk. */
  talks() {
    this._startedMs = clock();
  }

  /** Since the call began. */
  get seconds() {
    return (clock() - this._startedMs) / 1000;
  }

  /**
   * The call is over.
   *
   * @param {import("./recorder.js").Recorder} recorder
   * @param {Omit<Parameters<typeof summaryOf>[0], "seconds">} facts
   */
  sumUp(recorder, facts) {
    if (!recorder.frames || this._playback.src) return;
    this.summary = summaryOf({ ...facts, seconds: this.seconds }); // the recording is shorter where it is full
    this._playback.src = URL.createObjectURL(recorder.wav());
  }

  /** @param {boolean} isCalling */
  show(isCalling) {
    part("after", HTMLElement).hidden = isCalling || !this._playback.src;
  }

  pause() {
    this._playback.pause();
  }
}
