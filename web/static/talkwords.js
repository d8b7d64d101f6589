/** The headline of a conversation, of its state and of what is known besides. Pure. */

import { STALL_MS } from "./quality.js";
import { STALLED, wordsFor } from "./words.js";

/** How long the words of a return stay. */
const RETURN_MS = 10_000;
/** After so long the page says where the browser asks. */
const OPENING_MS = 3000;

/** @typedef {import("./words.js").Words} Words */

/**
 * @typedef {object} Besides
 * @property {boolean} needsKey
 * @property {number | null} openingMs since the press of the button, while the devices are not open
 * @property {"microphone" | "sound"} stage what is being opened
 * @property {boolean} isStopped the system has stopped the sound
 * @property {number} silentMs since the last reply of a live call
 * @property {boolean} isMuted
 * @property {boolean} isHeld the button that opens the microphone is held
 * @property {boolean} holdsToTalk the visitor chose to be heard only then
 * @property {number} liveMs since the call was live, or is again
 * @property {boolean} isEcho
 * @property {boolean} isUnsaved
 */

/**
 * @param {import("./session.js").State} state
 * @param {number} nowMs on the session's clock
 * @param {Besides} besides
 * @returns {Words}
 */
export function wordsForTalk(state, nowMs, besides) {
  if (besides.needsKey) return say("This server asks for an access key.", "Enter it to begin. It is kept in this browser.");
  if (besides.openingMs !== null) return openingWords(besides.stage, besides.openingMs > OPENING_MS);
  if (besides.isStopped) return trouble("Audio was paused by your device.", "Tap to resume.");
  if (state.name === "live") {
    if (besides.silentMs > STALL_MS) {
      return STALLED;
    }
    if (besides.isHeld) return say("You are heard.", "Let go when you have said it.");
    if (besides.isMuted && besides.holdsToTalk) return say("Hold to talk, let go to listen.", "You are heard while you hold the button, or the key T.");
    if (besides.isMuted) return say("You are muted.", "The call continues. Unmute, or hold the other button while you speak.");
    if (besides.liveMs > RETURN_MS) return wordsFor({ name: "live", isReturning: false }, nowMs);
  }
  const words = wordsFor(state, nowMs);
  const isIdle = state.name === "idle" || (state.name === "ended" && state.reason === "us");
  return isIdle && !words.help ? { ...words, help: introduction(state.name === "ended", besides) } : words;
}

/** @param {"microphone" | "sound"} stage @param {boolean} isLong */
function openingWords(stage, isLong) {
  if (stage === "sound") return say("Opening the sound…", isLong ? "The server has not answered yet." : "");
  const help = isLong
    ? "Allow it in the question that your browser shows near the page's address."
    : "Your browser may ask for permission.";
  return say("Opening the microphone…", help);
}

/** @param {boolean} isAfter @param {Besides} besides */
function introduction(isAfter, { isEcho, isUnsaved }) {
  if (isAfter) return isUnsaved ? "The recording can be saved until the next call." : "";
  if (isEcho) return "An echo: your voice goes through a codec and comes back, a moment later.";
  return "Headphones help: it hears you all the time, also while it speaks.";
}

/** @param {string} line @param {string} help @returns {Words} */
function say(line, help) {
  return { line, help, isTrouble: false };
}

/** @param {string} line @param {string} help @returns {Words} */
function trouble(line, help) {
  return { line, help, isTrouble: true };
}
