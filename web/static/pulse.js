/** Whether the other end of a connection is alive: pings, their answers, and how long it has been silent. */

export const PING_EVERY_MS = 2000;
export const SILENCE_LIMIT_MS = 8000;
export const CONNECT_LIMIT_MS = 10_000;
/** A clock that jumped so far means that this page slept, not that the server was silent. */
const SLEPT_MS = 4000;

/** One connection's, from the attempt on; every method is told the time, in milliseconds. */
export class Pulse {
  /** @param {number} nowMs */
  constructor(nowMs) {
    this.hasOpened = false;
    this._heardMs = this._lookedMs = this._pingMs = nowMs;
    this._askedMs = 0;
  }

  /** @param {number} nowMs */
  opened(nowMs) {
    this.hasOpened = true;
    this._heardMs = nowMs;
  }

  /** Anything came. @param {number} nowMs */
  heard(nowMs) {
    this._heardMs = nowMs;
  }

  /** A ping was answered. @returns {number | null} the time that took, null without an open ping */
  answered() {
    if (!this._askedMs) return null;
    const tookMs = this._heardMs - this._askedMs;
    this._askedMs = 0;
    return tookMs;
  }

  /**
   * Look at the time.
   *
   * @param {number} nowMs
   * @returns {"silent" | "unreachable" | "ask" | null} what it means; `ask`: send a ping
   */
  look(nowMs) {
    const hasSlept = nowMs - this._lookedMs > SLEPT_MS;
    this._lookedMs = nowMs;
    if (hasSlept) {
      // What the server sent meanwhile may still wait to be read: ask first, judge later.
      this._heardMs = Math.max(this._heardMs, nowMs - SILENCE_LIMIT_MS / 2);
      this._pingMs = 0;
    }
    const silentMs = nowMs - this._heardMs;
    if (!this.hasOpened) return silentMs > CONNECT_LIMIT_MS ? "unreachable" : null;
    if (silentMs > SILENCE_LIMIT_MS) return "silent";
    if (nowMs - this._pingMs < PING_EVERY_MS) return null;
    this._pingMs = nowMs;
    this._askedMs = this._askedMs || nowMs;
    return "ask";
  }
}
