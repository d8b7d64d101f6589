/** A recording that speaks in the microphone's place, sample for sample and from the start of a frame: the same each time. */

import { SAMPLE_RATE } from "./codecs.js";
import { FRAME_SAMPLES } from "./latency.js";

/** Silence before it. */
const DELAY_SAMPLES = 0.3 * SAMPLE_RATE;

/** @param {URL} url @returns {Promise<Float32Array>} its samples at SAMPLE_RATE */
export async function readClip(url) {
  const file = await (await fetch(url)).arrayBuffer();
  const buffer = await new OfflineAudioContext(1, 1, SAMPLE_RATE).decodeAudioData(file);
  return buffer.getChannelData(0);
}

/** One recording, once. */
export class Clip {
  /** @param {Float32Array} samples @param {number} sent samples of the call so far */
  constructor(samples, sent) {
    this._samples = samples;
    this._start = Math.ceil((sent + DELAY_SAMPLES) / FRAME_SAMPLES) * FRAME_SAMPLES;
  }

  /**
   * Put what it says in the place of what the microphone hears.
   *
   * @param {Float32Array} said is written over
   * @param {number} sent samples before these
   * @returns {boolean} whether it has more to say
   */
  speak(said, sent) {
    for (let index = 0; index < said.length; index++) said[index] = this._samples[sent + index - this._start] ?? 0;
    return sent + said.length < this._start + this._samples.length;
  }
}
