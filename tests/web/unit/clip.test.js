// A recorded question in the microphone's place.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Clip } from "../../../web/static/clip.js";

const FRAME = 1920;

/** What is sent in blocks of 479 samples, from `sent` on, while a microphone hears noise. @param {number} sent @param {Float32Array} samples */
function sentFrom(sent, samples) {
  const clip = new Clip(samples, sent);
  const out = [];
  for (let at = sent, isSpeaking = true; isSpeaking; at += 479) {
    const block = new Float32Array(479).fill(0.5);
    isSpeaking = clip.speak(block, at);
    out.push(...block);
  }
  return out;
}

const RECORDING = Float32Array.from({ length: 5000 }, (_, index) => (index + 1) / 8192);

for (const sent of [0, 1, 1919, 1920, 123_457]) {
  test(`it begins with a frame, after ${sent} samples`, () => {
    const out = sentFrom(sent, RECORDING);
    const begin = out.findIndex((it) => it !== 0);
    assert.equal((sent + begin) % FRAME, 0);
    assert.ok(begin >= 7200 && begin < 7200 + FRAME, `${begin}`);
    assert.deepEqual(out.slice(begin, begin + 5000), [...RECORDING]);
  });
}

test("the microphone is not heard before it, nor in its last block", () => {
  const out = sentFrom(0, RECORDING);
  assert.ok(out.every((it) => it !== 0.5 || RECORDING.includes(it)));
  assert.ok(out.length < 7200 + FRAME + 5000 + 479);
});
