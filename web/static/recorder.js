/**
 * Keeps both sides of a call as it was heard here: you on the left, the reply on the right.
 *
 * A second takes 96 kB; after LONGEST_S the beginning stays and the rest is not kept. Whole pieces become
 * blobs, which browsers may move to disk.
 */

import { HEADER_BYTES, interleave, wavHeader } from "./wav.js";

export const LONGEST_S = 3600;
const PIECE_FRAMES = 10 * 24_000;

/** One call's recording. */
export class Recorder {
  /** @param {number} sampleRate of both sides */
  constructor(sampleRate) {
    this._sampleRate = sampleRate;
    /** @type {Blob[]} */
    this._pieces = [];
    /** @type {Int16Array<ArrayBuffer>[]} */
    this._loose = [];
    this._looseFrames = 0;
    this.frames = 0;
  }

  get seconds() {
    return this.frames / this._sampleRate;
  }

  get isFull() {
    return this.seconds >= LONGEST_S;
  }

  /**
   * @param {Float32Array} mine
   * @param {Float32Array} theirs the same moment
   */
  push(mine, theirs) {
    if (this.isFull || (!mine.length && !theirs.length)) return;
    const samples = /** @type {Int16Array<ArrayBuffer>} */ (interleave(mine, theirs));
    this._loose.push(samples);
    this._looseFrames += samples.length / 2;
    this.frames += samples.length / 2;
    if (this._looseFrames >= PIECE_FRAMES) {
      this._pieces.push(new Blob(this._loose));
      this._loose = [];
      this._looseFrames = 0;
    }
  }

  /** Everything so far as a WAV file. */
  wav() {
    const header = wavHeader({ sampleRate: this._sampleRate, channels: 2, frames: this.frames });
    const parts = [/** @type {Uint8Array<ArrayBuffer>} */ (header), ...this._pieces, ...this._loose];
    const blob = new Blob(parts, { type: "audio/wav" });
    console.assert(blob.size === HEADER_BYTES + 4 * this.frames);
    return blob;
  }
}
