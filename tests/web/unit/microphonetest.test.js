// The test of the microphone: whatever goes wrong, the microphone is given back and the button works.
import assert from "node:assert/strict";
import { test } from "node:test";

import { pretendDevices, promised, world } from "./page.js";

const { MicrophoneTest } = await import("../../../web/static/microphonetest.js");

class Stream {
  isLive = true;
  getTracks = () => [{ stop: () => void (this.isLive = false) }];
}

/** @param {boolean} isBroken whether the browser's sound fails */
function pretendSound(isBroken) {
  world.AnalyserNode = class {
    getFloatTimeDomainData() {}
  };
  world.AudioContext = class {
    createMediaStreamSource() {
      if (isBroken) throw new Error("no sound");
      return { connect() {} };
    }
    close() {}
  };
}

/** @returns {any} */
const made = () => new MicrophoneTest(() => "");

test("a microphone whose sound cannot be had is given back", async () => {
  const stream = new Stream();
  pretendSound(true);
  pretendDevices({ getUserMedia: async () => stream });
  const it = made();
  await it._start();
  assert.deepEqual([stream.isLive, it._stop], [false, null]);
  assert.equal(it._button.textContent, "Test the microphone");
  assert.match(it._words.textContent, /^The microphone cannot be opened\./);
});

test("a refusal that comes after another test began does not end that one", async () => {
  const stream = new Stream();
  const first = promised();
  const answers = [first.promise, Promise.resolve(stream)];
  pretendSound(false);
  pretendDevices({ getUserMedia: () => answers.shift() });
  const it = made();
  const starting = it._start();
  it.stop();
  await it._start();
  first.refuse(new Error("no"));
  await starting;
  assert.deepEqual([stream.isLive, it._words.textContent], [true, "Say something."]);
  it.stop();
  assert.equal(stream.isLive, false);
});

test("a microphone that is allowed after the test was stopped is given back", async () => {
  const stream = new Stream();
  const asked = promised();
  pretendDevices({ getUserMedia: () => asked.promise });
  const it = made();
  const starting = it._start();
  it.stop();
  asked.keep(stream);
  await starting;
  assert.equal(stream.isLive, false);
});
