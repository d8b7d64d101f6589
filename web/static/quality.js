/** How good a connection is, in a word: what the numbers of a call mean to who talks. Pure. */

/** @typedef {"Good" | "Fair" | "Poor" | "Stalled" | "Starting"} Quality */

/** Beyond this a conversation feels slow; up to it it feels direct. */
const DIRECT_MS = 500;
const SLOW_MS = 900;
/** So many gaps in the last ten seconds are heard as a voice that stutters. */
const STUTTER_GAPS = 3;
/** Replies come every 80 ms: so long without one is a stall. */
export const STALL_MS = 700;

/**
 * @param {{ mouthToEarMs: number | null, recentGaps: number, silentMs: number }} now
 * @returns {Quality}
 */
export function qualityOf({ mouthToEarMs, recentGaps, silentMs }) {
  if (silentMs > STALL_MS) return "Stalled";
  if (mouthToEarMs === null) return "Starting";
  if (mouthToEarMs > SLOW_MS || recentGaps >= STUTTER_GAPS) return "Poor";
  return mouthToEarMs > DIRECT_MS || recentGaps > 0 ? "Fair" : "Good";
}
