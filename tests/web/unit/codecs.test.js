// The PCM path, the cutting into packets, and the scales of meter and plot.
import assert from "node:assert/strict";
import { test } from "node:test";

import { loudness } from "../../../web/static/loudness.js";
import { bestFormat, Chunker, fromPcm, makeDecoder, makeEncoder, toPcm } from "../../../web/static/codecs.js";
import { problemOf } from "../../../web/static/microphone.js";
import { scaleTop } from "../../../web/static/plot.js";

test("PCM goes out and comes back within half a step", () => {
  const samples = Float32Array.from({ length: 480 }, (_, index) => Math.sin(index) * 0.999);
  const back = fromPcm(toPcm(samples));
  samples.forEach((it, index) => assert.ok(Math.abs(it - (back[index] ?? 9)) <= 0.5 / 32768 + 1e-9));
  assert.deepEqual([...toPcm(Float32Array.of(0.5, -1))], [0, 0x40, 0, 0x80]);
});

test("the PCM codec answers at once, with time and frame", () => {
  /** @type {any[]} */
  const heard = [];
  const fail = (/** @type {Error} */ error) => assert.fail(error);
  makeEncoder("pcm_s16le", (payload, atS) => heard.push([payload.length, atS]), fail).encode(new Float32Array(480), 1.5);
  makeDecoder("pcm_s16le", (frame, samples, rate) => heard.push([frame, samples.length, rate]), fail).decode(new Uint8Array(4), 7);
  assert.deepEqual(heard, [[960, 1.5], [7, 2, 24_000]]);
});

test("a browser without WebCodecs speaks PCM", async () => assert.equal(await bestFormat(), "pcm_s16le"));

test("packets are 20 ms, in order, with the time of their first sample", () => {
  /** @type {[number, number][]} */
  const packets = [];
  /** @type {number[]} */
  const all = [];
  const chunker = new Chunker((samples, atS) => {
    packets.push([samples.length, atS]);
    all.push(...samples);
  });
  let sent = 0;
  for (const size of [100, 700, 480, 1, 959, 33]) {
    chunker.push(Float32Array.from({ length: size }, (_, index) => sent + index), 5 + sent / 24_000);
    sent += size;
  }
  assert.deepEqual(all, [...Array(all.length).keys()]);
  assert.equal(packets.length, Math.floor(sent / 480));
  packets.forEach(([length, atS], index) => {
    assert.equal(length, 480);
    assert.ok(Math.abs(atS - (5 + index * 0.02)) < 1e-9);
  });
});

test("a meter is empty at -60 dB and full at full scale", () => {
  const level = /** @param {number} peak */ (peak) => loudness(new Float32Array(100).fill(peak));
  assert.deepEqual([level(0), level(0.0005), level(1)], [0, 0, 1]);
  assert.ok(Math.abs(level(0.0316) - 0.5) < 0.001);
  assert.equal(loudness(new Float32Array(0)), 0);
});

test("a plot's scale is round and never too small", () => {
  assert.deepEqual([[], [null], [80], [95], [250], [1e5]].map(scaleTop), [100, 100, 100, 200, 300, 1e5]);
});

test("a browser's refusal becomes a word of ours", () => {
  const named = /** @param {string} name */ (name) => Object.assign(new Error("x"), { name });
  const names = ["NotAllowedError", "SecurityError", "NotFoundError", "NotReadableError", "TypeError"];
  assert.deepEqual(names.map((it) => problemOf(named(it))), ["blocked", "blocked", "missing", "busy", "unknown"]);
  assert.equal(problemOf("what"), "unknown");
});
