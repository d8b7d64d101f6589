// A transcription that was left changes nothing, and no microphone stays open for it.
import assert from "node:assert/strict";
import { test } from "node:test";

import { pretendDevices, promised, world } from "./page.js";

world.WebSocket = class {
  constructor() {
    assert.fail("no socket is opened for a view that was left");
  }
};

const { Transcribe } = await import("../../../web/static/transcribe.js");

/** @returns {any} */
function view() {
  const made = new Transcribe(/** @type {any} */ ({ all: [], key: "", deviceId: "" }), /** @type {any} */ ({ log() {} }));
  made.isShown = true;
  return made;
}

const WORDS = { words: [{ word: "one", start: 0, end: 0.3 }, { word: "two", start: 9, end: 9.4 }] };

/** The requests that a view makes from now on. */
function uploads() {
  /** @type {any[]} */
  const sent = [];
  world.XMLHttpRequest = class {
    upload = {};
    aborted = 0;
    open(/** @type {string} */ _method, /** @type {string} */ url) {
      Object.assign(this, { url });
    }
    getResponseHeader = () => "application/json";
    send = (/** @type {FormData} */ form) => sent.push(Object.assign(this, { form }));
    abort = () => void (this.aborted += 1);
    answer(/** @type {number} */ status, /** @type {unknown} */ body) {
      Object.assign(this, { status, responseText: JSON.stringify(body) });
      /** @type {any} */ (this).onload();
    }
  };
  return sent;
}

test("a microphone that is allowed after the view was left is closed", async () => {
  const { promise: asked, keep: allow } = promised();
  pretendDevices({ getUserMedia: () => asked });
  let stopped = 0;
  const it = view();
  const listening = it._listen();
  await it.leave();
  allow({ getTracks: () => [{ stop: () => void (stopped += 1) }] });
  await listening;
  assert.equal(stopped, 1);
  assert.equal(it._headline.line, "Speak, and read what you said.");
});

test("the answer to a recording that comes after the view was left is not shown", async () => {
  const sent = uploads();
  const it = view();
  const reading = it._read(new File(["sound"], "a.wav"));
  await it.leave();
  sent[0].answer(200, WORDS);
  await reading;
  assert.equal(sent[0].aborted, 1);
  assert.equal(it._words.length, 0);
  assert.equal(it._headline.line, "Speak, and read what you said.");
});

test("a microphone that is refused after the view was left is no trouble", async () => {
  const { promise: asked, refuse } = promised();
  pretendDevices({ getUserMedia: () => asked });
  const it = view();
  const listening = it._listen();
  await it.leave();
  refuse(Object.assign(new Error("no"), { name: "NotAllowedError" }));
  await listening;
  assert.equal(it._headline.isTrouble, false);
});

test("a server that stands still is shown, and given up with what it wrote", async () => {
  let closed = 0;
  const it = view();
  it._recogniser = { isReady: true, silentMs: 600, close: () => void (closed += 1) };
  it._words = [{ text: "one", startS: 0, stopS: null }];
  const line = () => world.document.getElementById("status").textContent;
  it._headline = { line: "Go ahead, it is listening.", help: "", isTrouble: false };
  it._watch();
  assert.equal(line(), "Go ahead, it is listening.");
  it._recogniser.silentMs = 701;
  it._watch();
  assert.equal(line(), "Waiting for the server…");
  it._recogniser.silentMs = 10_000;
  it._watch();
  await Promise.resolve();
  assert.equal(line(), "The server does not answer.");
  assert.deepEqual([closed, it._recogniser, it._words.length], [1, null, 1]);
});

test("a server that never was ready is waited for, and then given up", async () => {
  const it = view();
  it._recogniser = { isReady: false, silentMs: 9000, close: () => {} };
  it._headline = { line: "Connecting…", help: "", isTrouble: false };
  it._watch();
  assert.equal(world.document.getElementById("status").textContent, "Connecting…");
  it._recogniser.silentMs = 10_000;
  it._watch();
  await Promise.resolve();
  assert.match(world.document.getElementById("help").textContent, /Press the button to try again/);
});

test("a second press does not wait for the last words", async () => {
  let closed = 0;
  const it = view();
  it._recogniser = { finish: () => assert.fail("asked already"), close: () => void (closed += 1) };
  await it._finish();
  assert.equal(closed, 1);
});

test("a file is sent for words with real ends, and its pauses are shown as such", async () => {
  const sent = uploads();
  const it = view();
  it._add = (/** @type {any} */ word) => it._words.push(word);
  const reading = it._read(new File(["sound"], "a.wav"));
  const { url, form } = sent[0];
  assert.equal(url, "v1/audio/transcriptions");
  assert.deepEqual([form.get("response_format"), form.get("timestamp_granularities[]")], ["verbose_json", "word"]);
  assert.equal(form.get("file").name, "a.wav");
  sent[0].answer(200, WORDS);
  await reading;
  assert.deepEqual(it._words, [{ text: "one", startS: 0, stopS: 0.3 }, { text: "two", startS: 9, stopS: 9.4 }]);
  assert.equal(it._headline.line, "Written down.");
});

for (const [param, help] of /** @type {const} */ ([["file", /^It is no recording that the server reads/], ["model", /^No such model\.$/]])) {
  test(`a refusal of the ${param} is shown in words`, async () => {
    const sent = uploads();
    const it = view();
    const reading = it._read(new File(["sound"], "a.wav"));
    sent[0].answer(400, { error: { message: "no such model", param } });
    await reading;
    assert.match(it._headline.help, help);
  });
}

test("a sample that comes after it was cancelled is not sent, and a second press fetches nothing", async () => {
  const sent = uploads();
  const { promise, keep } = promised();
  let fetched = 0;
  world.fetch = () => ((fetched += 1), promise);
  const it = view();
  const reading = it._readSample("What is your name?");
  await it._readSample("What colour is snow?");
  await it._pressed();
  keep({ ok: true, blob: async () => new Blob(["sound"]) });
  await reading;
  assert.deepEqual([fetched, sent.length], [1, 0]);
  assert.equal(it._headline.line, "Cancelled.");
});

test("a sample that the server does not have is trouble, and no recording", async () => {
  const sent = uploads();
  world.fetch = async () => ({ ok: false, status: 404, blob: async () => new Blob(["not found"]) });
  const it = view();
  await it._readSample("What is your name?");
  assert.equal(sent.length, 0);
  assert.equal(it._headline.help, "The recording could not be fetched.");
  assert.equal(it._isBusy, false);
});

test("what ends closes its recogniser, and what that one still says changes nothing", async () => {
  let closed = 0;
  const it = view();
  const run = it._began();
  it._recogniser = { close: () => void (closed += 1) };
  await it._over({ line: "Over.", help: "", isTrouble: false });
  assert.equal(closed, 1);
  assert.notEqual(it._run, run);
});

test("words are saved by the name of their recording, which stands beside them", async () => {
  const sent = uploads();
  const it = view();
  it._add = (/** @type {any} */ word) => it._words.push(word);
  const reading = it._read(new File(["sound"], "three.take 2.wav"));
  sent[0].answer(200, WORDS);
  await reading;
  assert.equal(it._fileName(".srt"), "three.take 2.srt");
  assert.equal(world.document.getElementById("words-source").textContent, "three.take 2.wav");
  it._began(); // the microphone has no name
  assert.match(it._fileName(".srt"), /^antiphon-\d.*\.srt$/);
});
