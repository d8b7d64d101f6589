/** What the end of a connection means for who wants to talk. */

import { CLOSE } from "./protocol.js";
import { UNSAID_RETRY_S } from "./refusal.js";

/** So often in a row a server would take the call that was not taken: once, it may just have had no room. */
const OPEN_ANSWERS = 2;

/**
 * Why there is no connection; `blocked` is one that something on the way does not let through, `absent` one for
 * which a proxy has no worker.
 *
 * @typedef {"network" | "silent" | "leaving" | "unreachable" | "absent" | "blocked" | "fault"} Loss
 *
 * `lost` is to be tried again, later each time; `full` and `limited` when the server said; `failed` not at all.
 *
 * @typedef {{ name: "lost", reason: Loss, retryAfterS: number }
 *   | { name: "full" | "limited", message: string, retryAfterS: number }
 *   | { name: "ended", reason: "server" }
 *   | { name: "failed", message: string }} Verdict
 */

/**
 * Of a connection that never stood.
 *
 * @param {import("./refusal.js").Refusal | null} refusal
 * @param {number} openAnswers how often in a row, this one counted, the server would have taken the call
 * @returns {Verdict}
 */
export function ofRefusal(refusal, openAnswers) {
  switch (refusal?.kind) {
    case "never":
      return { name: "failed", message: refusal.message };
    case "full":
    case "limited":
      return { name: refusal.kind, message: refusal.message, retryAfterS: refusal.retryAfterS };
    case "leaving":
    case "absent":
      return { name: "lost", reason: refusal.kind, retryAfterS: refusal.retryAfterS };
    default:
      return { name: "lost", reason: openAnswers >= OPEN_ANSWERS ? "blocked" : "unreachable", retryAfterS: 0 };
  }
}

/**
 * Of a connection that stood.
 *
 * @param {{ code: number, reason: string }} close
 * @param {import("./protocol.js").Event | null} error the last the server told of
 * @param {boolean} isAfterTalk the call was live, and audio was sent
 * @returns {Verdict}
 */
export function ofClose(close, error, isAfterTalk) {
  const message = String(error?.fields["message"] ?? close.reason);
  const retryAfterS = Number(error?.fields["retry_after_s"] ?? 0);
  switch (close.code) {
    case CLOSE.DONE:
      return { name: "ended", reason: "server" };
    case CLOSE.LEAVING:
      return { name: "lost", reason: "leaving", retryAfterS: 0 };
    case CLOSE.FULL:
      return { name: "full", message, retryAfterS: retryAfterS || UNSAID_RETRY_S };
    case CLOSE.NOT_ALLOWED:
      if (retryAfterS) return { name: "limited", message, retryAfterS };
      // In the middle of a call it means that nothing came from us: this machine slept, or its audio did.
      return isAfterTalk ? { name: "lost", reason: "silent", retryAfterS: 0 } : { name: "failed", message };
    case CLOSE.BAD_DATA:
      return { name: "failed", message };
    default:
      return { name: "lost", reason: error ? "fault" : "network", retryAfterS: 0 };
  }
}
