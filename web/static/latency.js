/**
 * What a listener can know about delay, from frame indices and this machine's clocks. Pure.
 *
 * Mouth to ear is the time from the first sample of an input frame at the microphone to the first sample of its
 * answer at the speaker, both on the audio clock of this machine: nothing depends on the server's clock.
 */

export const FRAME_SAMPLES = 1920;
export const FRAME_MS = 80;
/** Frames that may be under way: ten seconds of them. */
const KEPT = 125;
/** RFC 3550, section 6.4.1: the weight of a new difference in the running jitter. */
const JITTER_GAIN = 1 / 16;

/** One session's numbers: its frames count from 0. */
export class LatencyMeter {
  constructor() {
    this._samples = 0;
    /** When each of the last frames began at the microphone, in seconds. @type {Map<number, number>} */
    this._saidAt = new Map();
    /** @type {number | null} */
    this._transitMs = null;
    this._arrivedFrame = -1;
    this.jitterMs = 0;
    /** @type {number | null} */
    this.mouthToEarMs = null;
    this.frames = 0;
  }

  /**
   * Audio was handed to the network; the server counts the same samples.
   *
   * @param {number} samples at 24 kHz
   * @param {number} atS when the first of them was at the microphone
   */
  said(samples, atS) {
    const sampleS = 1 / 24_000;
    const frame = Math.ceil(this._samples / FRAME_SAMPLES);
    const offset = frame * FRAME_SAMPLES - this._samples;
    if (offset < samples) {
      this._saidAt.set(frame, atS + offset * sampleS);
      this._saidAt.delete(frame - KEPT);
    }
    this._samples += samples;
  }

  /**
   * Another connection goes on with the call.
   *
   * @param {number} frame the first that is said on it
   */
  goOnFrom(frame) {
    this._samples = frame * FRAME_SAMPLES;
    this._transitMs = null;
  }

  /**
   * The first audio of an answer came in.
   *
   * @param {number} frame
   * @param {number} nowMs
   */
  arrived(frame, nowMs) {
    if (frame <= this._arrivedFrame) return;
    this._arrivedFrame = frame;
    this.frames += 1;
    const transitMs = nowMs - frame * FRAME_MS;
    if (this._transitMs !== null) {
      this.jitterMs += (Math.abs(transitMs - this._transitMs) - this.jitterMs) * JITTER_GAIN;
    }
    this._transitMs = transitMs;
  }

  /**
   * An answer begins to be heard.
   *
   * @param {number} frame
   * @param {number} atS on the clock of `said`
   * @param {number} devicesS what the microphone and the speaker add
   */
  heard(frame, atS, devicesS) {
    const saidS = this._saidAt.get(frame);
    if (saidS !== undefined) this.mouthToEarMs = (atS - saidS + devicesS) * 1000;
  }
}

/** Numbers over the last while, for a plot. */
export class History {
  /** @param {number} size how many are kept */
  constructor(size) {
    this.size = size;
    /** @type {{ value: number | null, isMarked: boolean }[]} */
    this.points = [];
  }

  /**
   * @param {number | null} value null where there is none
   * @param {boolean} isMarked whether something went wrong then
   */
  push(value, isMarked) {
    this.points.push({ value, isMarked });
    if (this.points.length > this.size) this.points.shift();
  }

  /** The middle of the last values. @param {number} count of how many points */
  typical(count) {
    const values = this.points.slice(-count).flatMap(({ value }) => (value === null ? [] : [value]));
    values.sort((one, other) => one - other);
    return values[values.length >> 1] ?? null;
  }
}
