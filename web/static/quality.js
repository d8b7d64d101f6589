/** How good a connection is: what the numbers of a call mean to the caller, and whose fault it is. Pure. */

/** @typedef {"Good" | "Fair" | "Server is behind" | "Network is slow" | "No answer" | "Starting"} Quality */

/** Beyond this a conversation feels slow; up to it it feels direct. */
const DIRECT_MS = 500;
export const SLOW_MS = 900;
/** So many gaps in the last ten seconds are heard as a voice that stutters. */
const STUTTER_GAPS = 3;
/** A frame that waits and is computed for longer is one that the server answers late. */
const FRAME_MS = 80;
/** Replies come every 80 ms: so long without one is a stall. */
export const STALL_MS = 700;

/**
 * @param {object} now
 * @param {number | null} now.mouthToEarMs
 * @param {number} now.recentGaps in the last ten seconds
 * @param {number} now.recentLate frames that the server answered late in the last ten seconds
 * @param {number} now.serverMs what the server took for the last frame, its waiting included
 * @param {number} now.silentMs since the last reply
 * @returns {Quality}
 */
export function qualityOf({ mouthToEarMs, recentGaps, recentLate, serverMs, silentMs }) {
  if (silentMs > STALL_MS) return "No answer";
  if (mouthToEarMs === null) return "Starting";
  if (mouthToEarMs > SLOW_MS || recentGaps >= STUTTER_GAPS) {
    return recentLate > 0 || serverMs > FRAME_MS ? "Server is behind" : "Network is slow";
  }
  return mouthToEarMs > DIRECT_MS || recentGaps > 0 ? "Fair" : "Good";
}
