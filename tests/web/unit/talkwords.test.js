// The headline of a conversation: what is known besides its state.
import assert from "node:assert/strict";
import { test } from "node:test";

import { wordsForTalk } from "../../../web/static/talkwords.js";

const LIVE = /** @type {const} */ ({ name: "live", isReturning: false });
/** @type {import("../../../web/static/talkwords.js").Besides} */
const CALM = {
  ...{ needsKey: false, openingMs: null, stage: "microphone", isStopped: false, silentMs: 0, isMuted: false },
  ...{ isHeld: false, holdsToTalk: false },
  ...{ liveMs: 20_000, isEcho: false, isUnsaved: false },
};

test("a stall is told before everything else of a live call", () => {
  assert.equal(wordsForTalk(LIVE, 0, CALM).line, "Go ahead, it is listening.");
  const words = wordsForTalk(LIVE, 0, { ...CALM, isMuted: true, silentMs: 701 });
  assert.deepEqual([words.line, words.isTrouble], ["Waiting for the server…", true]);
  assert.equal(wordsForTalk(LIVE, 0, { ...CALM, isMuted: true }).line, "You are muted.");
});

test("a visitor who holds is heard, and a call that begins so says how", () => {
  const words = (/** @type {object} */ more) => wordsForTalk(LIVE, 0, { ...CALM, ...more });
  assert.deepEqual([words({ isHeld: true }).line, words({ isHeld: true }).help], ["You are heard.", "Let go when you have said it."]);
  assert.match(words({ isMuted: true }).help, /Unmute, or hold the other button/);
  assert.equal(words({ isMuted: true, holdsToTalk: true }).line, "Hold to talk, let go to listen.");
  assert.equal(words({ holdsToTalk: true }).line, "Go ahead, it is listening.");
});

test("what is being opened is said, and after a while what to do", () => {
  const opening = (/** @type {"microphone" | "sound"} */ stage, /** @type {number} */ openingMs) =>
    wordsForTalk({ name: "idle" }, 0, { ...CALM, stage, openingMs });
  assert.match(opening("microphone", 100).line, /Opening the microphone/);
  assert.match(opening("microphone", 3100).help, /Allow it in the question/);
  assert.equal(opening("sound", 100).help, "");
  assert.match(opening("sound", 3100).help, /server has not answered/);
});

test("a key is asked for, and an unsaved recording is remembered", () => {
  assert.match(wordsForTalk({ name: "idle" }, 0, { ...CALM, needsKey: true }).line, /asks for an access key/);
  const ended = /** @type {const} */ ({ name: "ended", reason: "us" });
  assert.match(wordsForTalk(ended, 0, { ...CALM, isUnsaved: true }).help, /can be saved until the next call/);
  assert.equal(wordsForTalk(ended, 0, CALM).help, "");
  const back = /** @type {const} */ ({ name: "live", isReturning: true });
  assert.match(wordsForTalk(back, 0, { ...CALM, liveMs: 1000 }).line, /You are back/);
  assert.doesNotMatch(wordsForTalk(back, 0, CALM).line, /You are back/);
});
