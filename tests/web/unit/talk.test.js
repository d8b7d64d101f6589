// The view of a conversation: when the microphone is live, and how a call is summed up.
import assert from "node:assert/strict";
import { test } from "node:test";

import { element, pretendDevices, world } from "./page.js";

pretendDevices({});
world.HTMLElement.prototype.getContext = () => null;

const { chip } = await import("../../../web/static/chips.js");
const { Talk } = await import("../../../web/static/talk.js");

/** A view in a call that a recorded question began. @param {boolean} holdsToTalk @returns {any} */
function view(holdsToTalk) {
  const settings = { holdsToTalk, all: [], model: null };
  const it = /** @type {any} */ (new Talk(/** @type {any} */ (settings), /** @type {any} */ ({ log() {} })));
  it._call = {
    isMuted: holdsToTalk,
    hasMicrophone: false,
    openMicrophone: async () => void (it._call.hasMicrophone = true),
    session: { isWanted: true, state: { name: "live" } },
    recorder: { frames: 1, seconds: 3600, wav: () => new Blob([]) },
    numbers: () => ({ gaps: 2 }),
  };
  return it;
}

for (const [holdsToTalk, isHeld, isMuted] of /** @type {const} */ ([
  [true, false, true],
  [true, true, false],
  [false, false, false],
])) {
  test(`a microphone turned on is ${isMuted ? "muted" : "heard"}: hold to talk ${holdsToTalk}, held ${isHeld}`, async () => {
    const it = view(holdsToTalk);
    it._hold.set(isHeld);
    await it._useMicrophone();
    assert.equal(it._call.isMuted, isMuted);
    it._hold.set(false);
    assert.equal(it._call.isMuted, holdsToTalk);
  });
}

test("a call is as long as it was, however much of it was recorded", () => {
  const it = view(false);
  element("playback").src = "";
  it._last._startedMs = performance.now() - 7_200_000;
  it._sumUp();
  assert.equal(it._last.summary.replaceAll("\u00a0", " "), "120:00 of talk · 2 gaps");
  it._last.show(true);
  assert.equal(element("after").hidden, true);
  it._last.show(false);
  assert.equal(element("after").hidden, false);
});

test("how long a call may continue is counted down, and gone with the server", () => {
  const it = view(false);
  const notice = element("notice");
  it._leaves(60);
  assert.equal(notice.textContent, "The server restarts soon: this call may continue for 60 seconds.");
  it._leavesMs -= 18_500;
  it.show();
  assert.equal(notice.textContent, "The server restarts soon: this call may continue for 42 seconds.");
  it._changed({ name: "lost", reason: "leaving", retryAtMs: 0 });
  assert.deepEqual([notice.textContent, notice.hidden], ["", true]);
  it._note("The recorded voice could not be fetched.");
  it._changed({ name: "live", isReturning: false });
  assert.equal(notice.hidden, false, "another notice stays");
});

test("the second click of a double click asks nothing: chips may have moved below it", () => {
  let asked = 0;
  const button = chip("What is your name?", () => void (asked += 1));
  const click = (/** @type {number} */ detail) => button.dispatchEvent(Object.assign(new Event("click"), { detail }));
  click(2);
  assert.equal(asked, 0);
  click(1);
  click(0); // with the keyboard
  assert.equal(asked, 2);
});

test("what has begun is started again, what has not is tried again", () => {
  const it = view(false);
  const label = () => it._label({ name: "ended", reason: "us" }, false);
  assert.equal(label(), "Start again");
  it._call.recorder.frames = 0;
  assert.equal(label(), "Try again");
  it._call = null;
  assert.equal(label(), "Start talking");
  it._trouble = { line: "There is no microphone.", help: "", isTrouble: true };
  assert.equal(label(), "Try again");
});

test("the pill names the delay where a call is well, and what is wrong where it is not", () => {
  const it = view(false);
  const quality = element("quality");
  const shown = () => [quality.textContent, quality.dataset["quality"], element("mouth-to-ear-short").textContent];
  const numbers = { state: "live", mouthToEarMs: 331, gaps: 0, late: 0, silentMs: 40, path: "" };
  it._panel._ask = () => numbers;
  it._panel.update();
  assert.deepEqual(shown(), ["Delay", "Good", "331 ms"]);
  numbers.silentMs = 5000;
  it._panel.update();
  assert.deepEqual(shown(), ["No answer", "No answer", ""]);
});
