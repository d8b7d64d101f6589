// Every state has words that a visitor can act on.
import assert from "node:assert/strict";
import { test } from "node:test";

import { duration, stopwatch, wordsFor, wordsForLeaving, wordsForMicrophone } from "../../../web/static/words.js";

/** @typedef {import("../../../web/static/session.js").State} State */

/** @type {[State, string, RegExp, boolean][]} */
const STATES = [
  [{ name: "idle" }, "Press the button and say something.", /^$/, false],
  [{ name: "connecting", isReturning: false }, "Connecting…", /^$/, false],
  [{ name: "connecting", isReturning: true }, "Reconnecting…", /^$/, false],
  [{ name: "queued", ahead: 2, retryAfterS: 40 }, "Waiting: 2 ahead of you.", /estimate is 40 seconds; it may be much sooner/, false],
  [{ name: "queued", ahead: 0, retryAfterS: 0 }, "Waiting: you are next.", /^You are let in as soon as a place is free/, false],
  [{ name: "live", isReturning: false }, "Go ahead, it is listening.", /^$/, false],
  [{ name: "live", isReturning: true }, "You are back.", /This is a new conversation/, false],
  [{ name: "lost", reason: "network", retryAtMs: 4000 }, "The connection was lost.", /Trying again in 4 seconds\./, true],
  [{ name: "lost", reason: "silent", retryAtMs: 10 }, "The connection was lost.", /Trying again now\./, true],
  [{ name: "lost", reason: "leaving", retryAtMs: 10 }, "The server is restarting.", /Trying again/, true],
  [{ name: "lost", reason: "unreachable", retryAtMs: 10 }, "The server cannot be reached.", /Trying again/, true],
  [{ name: "lost", reason: "absent", retryAtMs: 5000 }, "This model is not running.", /^Trying again in 5 seconds\.$/, true],
  [{ name: "lost", reason: "fault", retryAtMs: 10 }, "The server had a fault.", /Trying again/, true],
  [{ name: "lost", reason: "blocked", retryAtMs: 10 }, "The server answers, but calls do not get through.", /WebSockets.*Trying again/, true],
  [{ name: "limited", message: "you have 1 of 1", retryAtMs: 20_000 }, "Call limit reached.", /^You have 1 of 1\. Trying again in 20 seconds/, true],
  [{ name: "full", message: "x", retryAtMs: 180_000 }, "The server is full.", /Trying again in 3 minutes/, true],
  [{ name: "ended", reason: "us" }, "The call is over.", /^$/, false],
  [{ name: "ended", reason: "server" }, "The server has ended the call.", /Press the button to begin another one/, false],
  [{ name: "failed", message: "no model 'x' here\n" }, "This did not work.", /^No model 'x' here\. Press the button to try again\.$/, true],
  [{ name: "failed", message: "" }, "This did not work.", /^The server gave no reason\. Press/, true],
];

for (const [state, line, help, isTrouble] of STATES) {
  test(`${state.name}: ${line}`, () => {
    const words = wordsFor(state, 0);
    assert.equal(words.line, line);
    assert.match(words.help, help);
    assert.equal(words.isTrouble, isTrouble);
  });
}

test("each problem with a microphone says what to do about it", () => {
  const says = { insecure: /https:\/\/voice\.example/, blocked: /Allow/, missing: /Plug one in/, busy: /Close that one/, unknown: /Settings/ };
  for (const [problem, help] of Object.entries(says)) {
    const words = wordsForMicrophone(/** @type {any} */ (problem), "voice.example");
    assert.match(words.line, /microphone/);
    assert.match(words.help, help);
    assert.ok(words.isTrouble);
  }
});

test("times are said as people say them", () => {
  assert.deepEqual([1, 2, 89, 120, 600].map(duration), ["1 second", "2 seconds", "89 seconds", "2 minutes", "10 minutes"]);
  assert.deepEqual([0, 9.9, 61, 3600].map(stopwatch), ["0:00", "0:09", "1:01", "60:00"]);
});

test("a server that leaves says for how long a call may continue", () => {
  assert.match(wordsForLeaving(59_100), /^The server restarts soon: this call may continue for 60 seconds\.$/);
  assert.equal(wordsForLeaving(0), "The server restarts now.");
});
