/** Who speaks now, from how loud both sides are. Pure. */

/** -36 dB: louder than a room, softer than a voice. */
const LOUD = 0.4;
/** A click is shorter. */
const VOICE_MS = 60;
/** A voice pauses between its words. */
const PAUSE_MS = 700;

class Voice {
  constructor() {
    this._sinceMs = Infinity;
    this._lastMs = -Infinity;
    this.isSpeaking = false;
  }

  /** @param {number} level @param {number} nowMs */
  hear(level, nowMs) {
    if (level < LOUD) {
      this._sinceMs = Infinity;
    } else {
      this._sinceMs = Math.min(this._sinceMs, nowMs);
      if (nowMs - this._sinceMs >= VOICE_MS || this.isSpeaking) this._lastMs = nowMs;
    }
    this.isSpeaking = nowMs - this._lastMs < PAUSE_MS;
  }
}

/** One call's. */
export class Turns {
  constructor() {
    this._you = new Voice();
    this._reply = new Voice();
    /** Whether anybody has spoken yet. */
    this.hasBegun = false;
  }

  /**
   * @param {number} said the caller's loudness, as of loudness.js
   * @param {number} heard the reply's
   * @param {number} nowMs
   */
  hear(said, heard, nowMs) {
    this._you.hear(said, nowMs);
    this._reply.hear(heard, nowMs);
    this.hasBegun ||= this.speaker !== null;
  }

  /** Who speaks; where both do, the reply, which a caller listens to. @returns {"you" | "reply" | null} */
  get speaker() {
    if (this._reply.isSpeaking) return "reply";
    return this._you.isSpeaking ? "you" : null;
  }
}
