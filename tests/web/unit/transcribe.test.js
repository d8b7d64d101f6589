// A transcription that was left changes nothing, and no microphone stays open for it.
import assert from "node:assert/strict";
import { test } from "node:test";

/** @type {any} */
const world = globalThis;

/** Of a page, what a view touches. */
class Part extends EventTarget {
  /** @type {any} */
  style = { setProperty() {} };
  /** @type {any} */
  dataset = {};
  textContent = "";
  classList = { toggle() {} };
  firstElementChild = { removeAttribute() {} };
  replaceChildren() {}
  setAttribute() {}
  removeAttribute() {}
  pause() {}
}
for (const name of ["HTMLElement", "HTMLButtonElement", "HTMLInputElement", "HTMLAudioElement"]) world[name] = Part;
const parts = new Map();
world.document = Object.assign(new EventTarget(), {
  body: new Part(),
  getElementById: (/** @type {string} */ id) => parts.get(id) ?? (parts.set(id, new Part()), parts.get(id)),
});
world.location = { host: "localhost", href: "http://localhost/" };
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

test("a microphone that is allowed after the view was left is closed", async () => {
  /** @type {(stream: unknown) => void} */
  let allow = () => {};
  const asked = new Promise((resolve) => void (allow = resolve));
  const mediaDevices = { getUserMedia: () => asked };
  Object.defineProperty(world, "navigator", { value: { mediaDevices }, configurable: true });
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
  /** @type {any[]} */
  const requests = [];
  let aborted = 0;
  world.XMLHttpRequest = class {
    upload = {};
    status = 200;
    responseText = '[{"type": "Word", "text": "late", "start_time": 0}]';
    open() {}
    getResponseHeader = () => "application/json";
    send = () => requests.push(this);
    abort = () => void (aborted += 1);
  };
  const it = view();
  const reading = it._read(new File(["sound"], "a.wav"));
  await it.leave();
  requests[0].onload();
  await reading;
  assert.equal(aborted, 1);
  assert.equal(it._words.length, 0);
  assert.equal(it._headline.line, "Speak, and read what you said.");
});

test("a microphone that is refused after the view was left is no trouble", async () => {
  /** @type {(error: Error) => void} */
  let refuse = () => {};
  const asked = new Promise((_, reject) => void (refuse = reject));
  Object.defineProperty(world, "navigator", { value: { mediaDevices: { getUserMedia: () => asked } }, configurable: true });
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
