/** The headline of a conversation, of its state and of what is known besides. Pure. */

import { SLOW_MS, STALL_MS } from "./quality.js";
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
 * @property {boolean} hasMicrophone
 * @property {boolean} isMuted
 * @property {boolean} isHeld the button that opens the microphone is held
 * @property {boolean} holdsToTalk the visitor chose to be heard only then
 * @property {string | null} asked what a recorded voice asks now
 * @property {"you" | "reply" | null} speaker
 * @property {boolean} hasBegun anybody has spoken
 * @property {import("./quality.js").Quality} quality
 * @property {boolean} [offersPeers] the next call could go by WebRTC
 * @property {number | null} delayMs from mouth to ear
 * @property {number} liveMs since the call was live, or is again
 * @property {boolean} isEcho
 * @property {string} summary of the call that is over
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
  if (state.name === "live" && besides.silentMs > STALL_MS) return STALLED;
  if (state.name === "live" && (besides.liveMs > RETURN_MS || !state.isReturning)) return liveWords(besides);
  const words = wordsFor(state, nowMs);
  const isIdle = state.name === "idle" || (state.name === "ended" && state.reason === "us");
  return isIdle && !words.help ? { ...words, help: introduction(state.name === "ended", besides) } : words;
}

/** @param {Besides} besides */
function liveWords(besides) {
  const { asked, hasMicrophone, isMuted, quality } = besides;
  if (besides.isHeld) return say("You are heard.", "Let go when you have said it.");
  if (quality === "Server is behind") return behind("The server is behind.", besides, "It has more to do than it can do in time: wait a little, or call again later.");
  const way = besides.offersPeers ? " WebRTC, under Settings, may sound better." : "";
  if (quality === "Network is slow") return behind("The network is slow.", besides, `The server answers in time; the network, or this device, delays what you hear.${way}`);
  if (asked) return passing("A recorded voice asks.", hasMicrophone ? "Your microphone waits for its end." : "Your microphone is off.");
  if (besides.speaker === "reply") return passing("It is speaking.", hasMicrophone && !isMuted ? "It hears you while it speaks." : "");
  if (!hasMicrophone) return passing("Choose the next question.", "Or turn on the microphone, and ask it yourself.");
  if (isMuted && besides.holdsToTalk) return say("Hold to talk, let go to listen.", "You are heard while you hold the button, or the key T.");
  if (isMuted) return say("You are muted.", "The call continues. Unmute, or hold the other button while you speak.");
  if (besides.speaker === "you") return passing("You are speaking.", "");
  return besides.hasBegun ? passing("It is listening.", "") : say("Go ahead, it is listening.", "");
}

/** @param {string} line @param {Besides} besides @param {string} why @returns {Words} */
function behind(line, { delayMs }, why) {
  const late = delayMs === null || delayMs < SLOW_MS ? "Its voice has gaps." : `Answers come ${(delayMs / 1000).toFixed(1)} seconds after you.`;
  return { line, help: `${late} ${why}`, isTrouble: true, isPassing: true };
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
function introduction(isAfter, { isEcho, summary }) {
  if (isAfter) return summary;
  if (isEcho) return "An echo: your voice goes through a codec and comes back, a moment later.";
  return "Headphones help: it hears you all the time, also while it speaks.";
}

/** @param {string} line @param {string} help @returns {Words} */
function say(line, help) {
  return { line, help, isTrouble: false };
}

/** What changes with every turn, and is heard anyway: not to be read out. @param {string} line @param {string} help @returns {Words} */
function passing(line, help) {
  return { line, help, isTrouble: false, isPassing: true };
}

/** @param {string} line @param {string} help @returns {Words} */
function trouble(line, help) {
  return { line, help, isTrouble: true };
}
