// The headline of a conversation: what is known besides its state.
import assert from "node:assert/strict";
import { test } from "node:test";

import { wordsForTalk } from "../../../web/static/talkwords.js";

const LIVE = /** @type {const} */ ({ name: "live", isReturning: false });
/** @type {import("../../../web/static/talkwords.js").Besides} */
const CALM = {
  ...{ needsKey: false, openingMs: null, stage: "microphone", isStopped: false, silentMs: 0, isMuted: false },
  ...{ isHeld: false, holdsToTalk: false, hasMicrophone: true, asked: null, speaker: null, hasBegun: false },
  ...{ quality: "Good", delayMs: 300 },
  ...{ liveMs: 20_000, isEcho: false, summary: "" },
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

test("who speaks is said, and not read out", () => {
  const words = (/** @type {object} */ more) => wordsForTalk(LIVE, 0, { ...CALM, hasBegun: true, ...more });
  assert.deepEqual(
    [words({}), words({ speaker: "you" }), words({ speaker: "reply" })].map(({ line, isPassing }) => [line, isPassing]),
    [["It is listening.", true], ["You are speaking.", true], ["It is speaking.", true]],
  );
  assert.equal(words({ speaker: "you", isMuted: true }).line, "You are muted.");
  assert.match(words({ speaker: "reply" }).help, /hears you while it speaks/);
  assert.equal(words({ speaker: "reply", isMuted: true }).help, "");
});

test("a call of recorded questions says that nobody hears the visitor, and how to be heard", () => {
  const words = (/** @type {object} */ more) => wordsForTalk(LIVE, 0, { ...CALM, hasMicrophone: false, ...more });
  const asking = words({ asked: "What is your name?", speaker: "you" });
  assert.deepEqual([asking.line, asking.help], ["A recorded voice asks.", "Your microphone is off."]);
  assert.match(words({}).help, /turn on the microphone/);
  assert.doesNotMatch(words({ hasBegun: true }).line, /listening/);
  assert.match(words({ asked: "What is your name?", hasMicrophone: true }).help, /waits/);
});

test("answers that come late are somebody's fault", () => {
  const words = (/** @type {object} */ more) => wordsForTalk(LIVE, 0, { ...CALM, ...more });
  const server = words({ quality: "Server is behind", delayMs: 2140 });
  assert.deepEqual([server.line, server.isTrouble], ["The server is behind.", true]);
  assert.match(server.help, /^Answers come 2\.1 seconds after you\. It has more to do/);
  const network = words({ quality: "Network is slow", delayMs: 400 });
  assert.equal(network.line, "The network is slow.");
  assert.match(network.help, /^Its voice has gaps\. The server answers in time.*what you hear\.$/);
  assert.match(words({ quality: "Network is slow", offersPeers: true }).help, /WebRTC, under Settings, may sound better\.$/);
});

test("what is being opened is said, and after a while what to do", () => {
  const opening = (/** @type {"microphone" | "sound"} */ stage, /** @type {number} */ openingMs) =>
    wordsForTalk({ name: "idle" }, 0, { ...CALM, stage, openingMs });
  assert.match(opening("microphone", 100).line, /Opening the microphone/);
  assert.match(opening("microphone", 3100).help, /Allow it in the question/);
  assert.equal(opening("sound", 100).help, "");
  assert.match(opening("sound", 3100).help, /server has not answered/);
});

test("a key is asked for, and a call that is over is summed up", () => {
  assert.match(wordsForTalk({ name: "idle" }, 0, { ...CALM, needsKey: true }).line, /asks for an access key/);
  const ended = /** @type {const} */ ({ name: "ended", reason: "us" });
  assert.match(wordsForTalk(ended, 0, { ...CALM, summary: "0:42 of talk" }).help, /^0:42 of talk$/);
  assert.equal(wordsForTalk(ended, 0, CALM).help, "");
  const back = /** @type {const} */ ({ name: "live", isReturning: true });
  assert.match(wordsForTalk(back, 0, { ...CALM, liveMs: 1000 }).line, /You are back/);
  assert.doesNotMatch(wordsForTalk(back, 0, CALM).line, /You are back/);
});
