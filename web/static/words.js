/** What is going on, in plain words: a line, and where it helps a second one that says what to do. Pure. */

/**
 * @typedef {{ line: string, help: string, isTrouble: boolean, isPassing?: boolean }} Words `isPassing`: it changes often,
 *   and is not read out
 */

/**
 * @param {import("./session.js").State} state
 * @param {number} nowMs on the session's clock
 * @returns {Words}
 */
export function wordsFor(state, nowMs) {
  switch (state.name) {
    case "idle":
      return say("Press the button and say something.");
    case "connecting":
      return say(state.isReturning ? "Reconnecting…" : "Connecting…");
    case "queued":
      return say(queueLine(state.ahead), queueHelp(state.retryAfterS));
    case "live":
      if (state.isResumed) return say("You are back.", "The connection was lost for a moment. The conversation continues.");
      return state.isReturning
        ? say("You are back.", "The connection was lost. This is a new conversation.")
        : say("Go ahead, it is listening.");
    case "lost":
      return trouble(lostLine(state.reason), `${lostHelp(state.reason)}Trying again ${inSeconds(state.retryAtMs - nowMs)}.`);
    case "full":
      return trouble("The server is full.", `Every place is taken. Trying again ${inSeconds(state.retryAtMs - nowMs)}.`);
    case "limited":
      return trouble(
        "Call limit reached.",
        `${sentence(state.message)} Trying again ${inSeconds(state.retryAtMs - nowMs)}; ending another one helps.`,
      );
    case "ended":
      return state.reason === "us" ? say("The call is over.") : say("The server has ended the call.", "Press the button to begin another one.");
    case "failed":
      return trouble("This did not work.", `${sentence(state.message)} Press the button to try again.`);
  }
}

/** Nothing comes, in whichever view. */
export const STALLED = Object.freeze(
  trouble("Waiting for the server…", "Nothing has come for a moment: the server or the network does not answer. The call continues automatically."),
);

/** @param {number} ahead */
function queueLine(ahead) {
  return ahead === 0 ? "Waiting: you are next." : `Waiting: ${ahead} ahead of you.`;
}

/** @param {number} seconds */
function queueHelp(seconds) {
  const estimate = seconds > 0 ? `An estimate is ${duration(seconds)}; it may be much sooner. ` : "";
  return `${estimate}You are let in as soon as a place is free: leave this page open.`;
}

/** @param {import("./verdict.js").Loss} reason */
function lostLine(reason) {
  switch (reason) {
    case "blocked":
      return "The server answers, but calls do not get through.";
    case "unreachable":
      return "The server cannot be reached.";
    case "leaving":
      return "The server is restarting.";
    case "absent":
      return "This model is not running.";
    case "fault":
      return "The server had a fault.";
    default:
      return "The connection was lost.";
  }
}

/** @param {import("./verdict.js").Loss} reason */
function lostHelp(reason) {
  return reason === "blocked" ? "A proxy or a firewall on the way may refuse WebSockets: ask its operator. " : "";
}

/**
 * Why there is no microphone, and how to get one.
 *
 * @param {import("./microphone.js").Problem} problem
 * @param {string} host this page's
 * @returns {Words}
 */
export function wordsForMicrophone(problem, host) {
  switch (problem) {
    case "insecure":
      return trouble(
        "A microphone needs HTTPS.",
        `Browsers only give it to pages that came encrypted, or from this machine. Open https://${host}/ if the ` +
          "server has a certificate (antiphon serve --tls-cert … --tls-key …), or http://localhost with the same " +
          "port on the machine it runs on.",
      );
    case "blocked":
      return trouble(
        "The microphone is blocked.",
        "To allow it, open the symbol to the left of this page's address, set Microphone to Allow, and press the " +
          "button again. On a phone, the browser itself may also need permission in the system's settings.",
      );
    case "missing":
      return trouble("There is no microphone.", "Plug one in, or choose one of the questions: a recorded voice asks it.");
    case "busy":
      return trouble("The microphone is in use.", "Another program has it. Close that one and press the button again.");
    case "silent":
      return trouble(
        "The microphone did not open.",
        "The browser asked, or its sound system does not answer. Look for its question near the address, or choose a question below.",
      );
    case "soundless":
      return trouble("This browser plays no sound.", "It finds no speaker: plug one in, or choose one in the system's settings, and press the button again.");
    case "unreachable":
      return trouble("The server does not answer.", "It may be restarting, or the network is gone. Press the button to try again.");
    case "unknown":
      return trouble("The microphone cannot be opened.", "Choose another one under Settings, or one of the questions: a recorded voice asks it.");
  }
}

/** @param {number} ms */
function inSeconds(ms) {
  const seconds = Math.ceil(ms / 1000);
  return seconds <= 1 ? "now" : `in ${duration(seconds)}`;
}

/** @param {number} ms until a server that leaves ends the call */
export function wordsForLeaving(ms) {
  const seconds = Math.ceil(ms / 1000);
  return seconds <= 0 ? "The server restarts now." : `The server restarts soon: this call may continue for ${duration(seconds)}.`;
}

/** @param {number} number @param {string} noun in the singular */
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  return seconds < 90 ? count(Math.round(seconds), "second") : count(Math.round(seconds / 60), "minute");
}

/**
 * A time since the beginning, as players show it.
 *
 * @param {number} seconds
 */
export function stopwatch(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** @param {string} text a message of the server's, which begins small and ends without a full stop */
export function sentence(text) {
  const trimmed = text.trim() || "the server gave no reason";
  return `${trimmed[0]?.toUpperCase() ?? ""}${trimmed.slice(1)}${/[.!?]$/.test(trimmed) ? "" : "."}`;
}

/** @param {string} line @param {string} help @returns {Words} */
function say(line, help = "") {
  return { line, help, isTrouble: false };
}

/** @param {string} line @param {string} help @returns {Words} */
function trouble(line, help) {
  return { line, help, isTrouble: true };
}
