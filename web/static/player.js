/** Plays samples as they come, and tells where it is. */

import { SAMPLE_RATE } from "./codecs.js";

/** What is waited for before the first sound: speech may come at the pace it is heard. */
const LEAD_S = 0.3;

export class Player {
  constructor() {
    this._context = new AudioContext();
    this._endS = 0;
    this._samples = 0;
    /** Where pieces begin in the sound and on the context's clock. @type {{ soundS: number, atS: number }[]} */
    this._pieces = [];
  }

  /** @param {Float32Array} samples at 24 kHz */
  push(samples) {
    const buffer = this._context.createBuffer(1, samples.length, SAMPLE_RATE);
    buffer.getChannelData(0).set(samples);
    const source = this._context.createBufferSource();
    source.buffer = buffer;
    source.connect(this._context.destination);
    const nowS = this._context.currentTime;
    if (this._endS <= nowS) this._endS = nowS + LEAD_S;
    this._pieces.push({ soundS: this._samples / SAMPLE_RATE, atS: this._endS });
    source.start(this._endS);
    this._endS += buffer.duration;
    this._samples += samples.length;
  }

  /** Seconds of the sound that have been heard. */
  get heardS() {
    const nowS = this._context.currentTime - (this._context.outputLatency || 0);
    const piece = this._pieces.findLast((it) => it.atS <= nowS);
    return piece ? Math.min(piece.soundS + nowS - piece.atS, this._samples / SAMPLE_RATE) : 0;
  }

  get hasSound() {
    return this._samples > 0;
  }

  get isOver() {
    return this._context.currentTime > this._endS;
  }

  async close() {
    if (this._context.state !== "closed") await this._context.close();
  }
}
