// Recordings are WAV files that others can read, with both sides in step.
import assert from "node:assert/strict";
import { test } from "node:test";

import { LONGEST_S, Recorder } from "../../../web/static/recorder.js";
import { HEADER_BYTES, interleave, toInt16, wavHeader } from "../../../web/static/wav.js";

test("samples are clipped and rounded as the server does", () => {
  assert.deepEqual([0, 0.5, -1, 1, 2, -2, 1 / 65536].map(toInt16), [0, 16384, -32768, 32767, 32767, -32768, 1]);
});

test("the shorter side is filled up with silence", () => {
  assert.deepEqual([...interleave(Float32Array.of(0.5), Float32Array.of(0.25, -0.25))], [16384, 8192, 0, -8192]);
});

test("the header says what follows", () => {
  const view = new DataView(wavHeader({ sampleRate: 24_000, channels: 2, frames: 10 }).buffer);
  const word = /** @param {number} at */ (at) => String.fromCharCode(...new Uint8Array(view.buffer, at, 4));
  assert.deepEqual([word(0), word(8), word(12), word(36)], ["RIFF", "WAVE", "fmt ", "data"]);
  assert.equal(view.getUint32(4, true), HEADER_BYTES - 8 + 40);
  assert.deepEqual([view.getUint16(20, true), view.getUint16(22, true), view.getUint16(34, true)], [1, 2, 16]);
  assert.deepEqual([view.getUint32(24, true), view.getUint32(28, true)], [24_000, 96_000]);
  assert.equal(view.getUint32(40, true), 40);
});

test("a recording holds what was pushed, whatever its length", async () => {
  const recorder = new Recorder(24_000);
  const seconds = 23;
  for (let second = 0; second < seconds; second++) {
    recorder.push(new Float32Array(24_000).fill(second / 32), new Float32Array(24_000).fill(-second / 32));
  }
  assert.equal(recorder.seconds, seconds);
  const wav = await recorder.wav().arrayBuffer();
  assert.equal(wav.byteLength, HEADER_BYTES + seconds * 96_000);
  const samples = new Int16Array(wav, HEADER_BYTES);
  for (let second = 0; second < seconds; second++) {
    assert.equal(samples[second * 48_000], second * 1024);
    assert.equal(samples[second * 48_000 + 1] === 0 ? 0 : samples[second * 48_000 + 1], -second * 1024 || 0);
  }
  assert.equal((await new Recorder(24_000).wav().arrayBuffer()).byteLength, HEADER_BYTES);
});

test("a recording ends after an hour and keeps its beginning", () => {
  const recorder = new Recorder(10);
  for (let second = 0; second < LONGEST_S + 5; second++) recorder.push(new Float32Array(10), new Float32Array(10));
  assert.equal(recorder.seconds, LONGEST_S);
  assert.ok(recorder.isFull);
});
