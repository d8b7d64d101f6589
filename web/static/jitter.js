/**
 * The playback buffer: audio in when the network brings it, audio out when the speaker needs it. Pure.
 *
 * What it keeps is a LEAD: so much should still be waiting when the next piece arrives, that is, so late may a
 * piece be without being missed. All time is counted in samples of the speaker's clock.
 *
 * - Start: silence until the first piece has waited one lead; then it plays. The lead begins at 40 ms.
 * - Underrun: what played fades out within milliseconds, silence follows, and the next piece starts as the first
 *   one did. The lead grows by how late that piece was, by 20 ms at least and 80 ms at most, to no more than
 *   300 ms. An underrun counts as a gap once audio follows: the end of a conversation is none.
 * - Standing excess (even the least that waited in three seconds is more than the lead): playback runs 2 % fast
 *   until it is gone. So neither another clock nor a burst after a pause leaves a lasting delay.
 * - Overrun: with more waiting than the lead, a frame and 120 ms, the oldest is cut down to the lead and a frame,
 *   cross-faded, and counted as dropped.
 * - Flush: what waits for frames before the given one is forgotten at once, and refused if it still comes.
 * - Ten seconds without a gap make the lead shorter, to no less than 20 ms: by a fifth when more than half of it
 *   was never needed, else by a twentieth.
 */

const FIRST_LEAD_MS = 40;
const LEAST_LEAD_MS = 20;
const MOST_LEAD_MS = 300;
const LEAST_GROWTH_MS = 20;
const MOST_GROWTH_MS = 80;
const FRAME_MS = 80;
const SLACK_MS = 120;
const FADE_MS = 5;
/** An excess below this is noise. */
const TOLERANCE_MS = 10;
const WINDOWS = 3;
const CALM_WINDOWS = 10;
const SHRINK = 0.95;
const SHRINK_UNNEEDED = 0.8;
/** Playing fast, one sample more than so many is used up while so many are heard. */
const FAST_CYCLE = 50;
const CAPACITY_MS = 2000;

/** One conversation's buffer. */
export class JitterBuffer {
  /** @param {number} sampleRate of everything that goes in and comes out */
  constructor(sampleRate) {
    this._perMs = sampleRate / 1000;
    this._ring = new Float32Array(Math.round(CAPACITY_MS * this._perMs));
    this._fadeSamples = Math.round(FADE_MS * this._perMs);
    this._windowSamples = sampleRate;
    this._tail = new Float32Array(this._fadeSamples);
    /** Positions in the stream of everything ever pushed; the ring holds what lies between them. */
    this._written = 0;
    this._read = 0;
    /** Where the frames that have not begun yet will, oldest first. @type {{ at: number, frame: number }[]} */
    this._marks = [];
    this._pushedFrame = -1;
    this._heardFrame = -1;
    this._floor = 0;
    this._lead = FIRST_LEAD_MS * this._perMs;
    this._isPlaying = false;
    this._isDry = false;
    this._waitLeft = 0;
    this._silence = 0;
    this._phase = 0;
    this._owed = 0;
    this._fadeInLeft = 0;
    this._tailLeft = 0;
    this._calm = 0;
    this._calmLow = Infinity;
    this._windowLeft = this._windowSamples;
    this._windowLow = Infinity;
    /** The least that waited, in each of the last windows. @type {number[]} */
    this._lows = [];
    this.gaps = 0;
    this.gapMs = 0;
    this.droppedMs = 0;
  }

  /** How much waits now. */
  get depthMs() {
    return this._depth / this._perMs;
  }

  get leadMs() {
    return this._lead / this._perMs;
  }

  get isPlaying() {
    return this._isPlaying;
  }

  get _depth() {
    return this._written - this._read;
  }

  /**
   * Audio that answers input frame `frame`; further pieces of a frame come with the same number.
   *
   * @param {number} frame
   * @param {Float32Array} samples
   */
  push(frame, samples) {
    if (frame < this._floor || samples.length === 0) return;
    if (!this._isPlaying && this._depth === 0) this._awaken();
    const piece = samples.subarray(0, Math.floor(this._ring.length / 2));
    if (this._depth + piece.length > this._ring.length) this._cutTo(this._ring.length - piece.length);
    if (frame !== this._pushedFrame) this._marks.push({ at: this._written, frame });
    this._pushedFrame = frame;
    const start = this._written % this._ring.length;
    const room = this._ring.length - start;
    this._ring.set(piece.subarray(0, room), start);
    this._ring.set(piece.subarray(room), 0);
    this._written += piece.length;
    const keep = Math.round(this._lead + FRAME_MS * this._perMs);
    if (this._depth > keep + SLACK_MS * this._perMs) this._cutTo(keep);
  }

  /**
   * Fill `out` with what is to be heard next.
   *
   * @param {Float32Array} out
   * @returns {{ frame: number, offset: number }[]} the frames that begin to be heard, and where in `out`
   */
  pull(out) {
    /** @type {{ frame: number, offset: number }[]} */
    const begun = [];
    for (let offset = 0; offset < out.length; offset++) {
      if (!this._isPlaying) this._wait();
      let sample = 0;
      if (this._isPlaying) {
        this._begin(offset, begun);
        sample = this._take();
      }
      if (this._tailLeft > 0) sample += this._tail[this._fadeSamples - this._tailLeft--];
      out[offset] = sample;
    }
    this._watch(out.length);
    return begun;
  }

  /**
   * Forget what waits for frames before `atFrame`.
   *
   * @param {number} atFrame the first frame that may still be heard
   */
  flush(atFrame) {
    this._floor = Math.max(this._floor, atFrame);
    if (this._depth === 0) return;
    const isHearingOld = this._heardFrame < atFrame;
    const next = this._marks.find((mark) => mark.frame >= atFrame);
    if (isHearingOld) this._skipTo(next ? next.at : this._written);
  }

  /** The first piece after silence is here. */
  _awaken() {
    if (this._isDry) {
      const lateMs = this._silence / this._perMs;
      const growthMs = Math.min(Math.max(lateMs, LEAST_GROWTH_MS), MOST_GROWTH_MS);
      this._lead = Math.min(this._lead + growthMs * this._perMs, MOST_LEAD_MS * this._perMs);
      this.gaps += 1;
      this._calm = 0;
      this._calmLow = Infinity;
    }
    this._waitLeft = this._lead;
  }

  /** A sample of silence, or its end. */
  _wait() {
    if (this._depth > 0 && this._waitLeft-- <= 0) {
      this._isPlaying = true;
      this._fadeInLeft = this._fadeSamples;
      if (this._isDry) this.gapMs += this._silence / this._perMs;
      this._isDry = false;
      this._silence = 0;
      this._openWindow();
    } else {
      this._silence += 1;
    }
  }

  /**
   * Note the frames whose first sample is about to be heard.
   *
   * @param {number} offset
   * @param {{ frame: number, offset: number }[]} begun
   */
  _begin(offset, begun) {
    for (let mark = this._marks[0]; mark && mark.at <= this._read; mark = this._marks[0]) {
      this._marks.shift();
      this._heardFrame = mark.frame;
      begun.push({ frame: mark.frame, offset });
    }
  }

  /** The next sample; the last one that waits stops the playback. */
  _take() {
    let sample = this._at(this._read);
    if (this._owed > 0) {
      const next = this._depth > 1 ? this._at(this._read + 1) : sample;
      sample += (next - sample) * (this._phase / FAST_CYCLE);
      this._phase += 1;
      if (this._phase === FAST_CYCLE) {
        this._phase = 0;
        this._owed -= 1;
        this._read = Math.min(this._read + 1, this._written - 1);
      }
    }
    this._read += 1;
    if (this._fadeInLeft > 0) sample *= 1 - this._fadeInLeft-- / this._fadeSamples;
    if (this._depth <= 0) {
      this._fadeOut(() => sample);
      this._rest();
      this._isDry = true;
    }
    return sample;
  }

  /** Nothing waits: be silent until the next piece. */
  _rest() {
    this._isPlaying = false;
    this._silence = 0;
    this._phase = 0;
    this._owed = 0;
    this._lows = [];
  }

  /** @param {number} depth */
  _cutTo(depth) {
    const position = this._written - depth;
    this.droppedMs += (position - this._read) / this._perMs;
    this._skipTo(position);
  }

  /** @param {number} position */
  _skipTo(position) {
    if (this._isPlaying) {
      const heard = this._read;
      this._fadeOut((index) => (heard + index < this._written ? this._at(heard + index) : 0));
      this._fadeInLeft = this._fadeSamples;
    }
    this._read = position;
    this._marks = this._marks.filter((_, index) => {
      const end = this._marks[index + 1]?.at ?? this._written;
      return end > position;
    });
    this._lows = [];
    if (this._depth === 0) this._rest();
  }

  /** @param {(index: number) => number} sampleAt */
  _fadeOut(sampleAt) {
    for (let index = 0; index < this._fadeSamples; index++) {
      this._tail[index] = sampleAt(index) * (1 - (index + 1) / this._fadeSamples);
    }
    this._tailLeft = this._fadeSamples;
  }

  /** @param {number} position */
  _at(position) {
    return this._ring[position % this._ring.length];
  }

  _openWindow() {
    this._windowLeft = this._windowSamples;
    this._windowLow = Infinity;
  }

  /**
   * Once a second of playback, look at the least that waited.
   *
   * @param {number} samples
   */
  _watch(samples) {
    if (!this._isPlaying) return;
    this._windowLow = Math.min(this._windowLow, this._depth);
    this._windowLeft -= samples;
    if (this._windowLeft > 0) return;
    this._lows = [...this._lows, this._windowLow].slice(-WINDOWS);
    this._calmLow = Math.min(this._calmLow, this._windowLow);
    this._openWindow();
    this._relax();
    const excess = Math.min(...this._lows) - this._lead;
    if (this._lows.length === WINDOWS && excess > TOLERANCE_MS * this._perMs) {
      this._owed = Math.round(Math.min(excess, this._windowSamples / FAST_CYCLE));
    }
  }

  /** A second went by without a gap. */
  _relax() {
    this._calm += 1;
    if (this._calm < CALM_WINDOWS) return;
    const shrink = this._calmLow > this._lead / 2 ? SHRINK_UNNEEDED : SHRINK;
    this._lead = Math.max(this._lead * shrink, LEAST_LEAD_MS * this._perMs);
    this._calm = 0;
    this._calmLow = Infinity;
  }
}
