/** Keeps the screen on during a call: a phone that locks its screen stops the call. */

export class Awake {
  /** @param {() => boolean} isWanted whether there is a call now */
  constructor(isWanted) {
    this._isWanted = isWanted;
    /** @type {WakeLockSentinel | null} */
    this._lock = null;
  }

  get _isHeld() {
    return this._lock?.released === false;
  }

  async stay() {
    if (!this._isWanted() || document.hidden || !navigator.wakeLock || this._isHeld) return;
    try {
      const lock = await navigator.wakeLock.request("screen");
      // The call may have ended meanwhile, or another one of these was quicker.
      if (this._isWanted() && !this._isHeld) this._lock = lock;
      else await lock.release();
    } catch {
      // An empty battery, or a browser that does not want to: the call goes on as long as it may.
    }
  }

  release() {
    void this._lock?.release();
    this._lock = null;
  }
}
