// Any rate to any other, in any pieces, without drift, aliases or loss of level.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Resampler } from "../../../web/static/resample.js";

/** @param {number} rate @param {number} hz @param {number} seconds */
const tone = (rate, hz, seconds) =>
  Float32Array.from({ length: Math.round(rate * seconds) }, (_, index) => Math.sin((2 * Math.PI * hz * index) / rate));

/** @param {Float32Array} samples */
const rms = (samples) => Math.sqrt(samples.reduce((sum, it) => sum + it * it, 0) / samples.length);

/** @param {Resampler} resampler @param {Float32Array} samples @param {() => number} size */
function feedInPieces(resampler, samples, size) {
  const out = [];
  for (let start = 0; start < samples.length; ) {
    const end = start + size();
    out.push(...resampler.feed(samples.subarray(start, end)));
    start = end;
  }
  return Float32Array.from(out);
}

const RATES = [8000, 16_000, 22_050, 44_100, 48_000, 96_000, 192_000];

for (const rate of RATES) {
  for (const [from, to] of /** @type {[number, number][]} */ ([[rate, 24_000], [24_000, rate]])) {
    test(`${from} to ${to} Hz keeps a tone's place and level`, () => {
      const hz = 0.2 * Math.min(from, to);
      const out = new Resampler(from, to).feed(tone(from, hz, 0.5));
      const expected = tone(to, hz, 0.5);
      let worst = 0;
      for (let index = Math.round(0.01 * to); index < out.length; index++) {
        worst = Math.max(worst, Math.abs((out[index] ?? 0) - (expected[index] ?? 0)));
      }
      assert.ok(worst < 2e-3, `off by ${worst}`);
      assert.ok(out.length > (0.5 - 0.005) * to && out.length <= 0.5 * to + 1);
    });
  }
}

test("what the lower rate cannot hold is gone, not folded down", () => {
  for (const hz of [13_500, 16_000, 20_000, 23_000]) {
    assert.ok(rms(new Resampler(48_000, 24_000).feed(tone(48_000, hz, 0.3)).subarray(200)) < 1e-3, `${hz} Hz`);
  }
  for (const hz of [1000, 6000, 10_000]) {
    const level = rms(new Resampler(48_000, 24_000).feed(tone(48_000, hz, 0.3)).subarray(200));
    assert.ok(Math.abs(level - Math.SQRT1_2) < 0.015, `${hz} Hz: ${level}`);
  }
});

test("the cut into pieces changes no sample", () => {
  let seed = 7;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  for (const [from, to] of /** @type {[number, number][]} */ ([[44_100, 24_000], [48_000, 24_000], [24_000, 44_100]])) {
    const noise = Float32Array.from({ length: 9000 }, () => random() - 0.5);
    const whole = new Resampler(from, to).feed(noise);
    const parts = feedInPieces(new Resampler(from, to), noise, () => Math.floor(300 * random()));
    assert.deepEqual(parts, whole);
  }
});

test("an hour has as many samples as it should", () => {
  const resampler = new Resampler(44_100, 24_000);
  resampler._at = () => 0;
  let samples = 0;
  for (let second = 0; second < 3600; second++) samples += resampler.feed(new Float32Array(44_100)).length;
  assert.ok(Math.abs(samples - 3600 * 24_000) < 40, `${samples}`);
});

test("equal rates pass through", () => {
  const noise = tone(24_000, 440, 0.1);
  assert.deepEqual(new Resampler(24_000, 24_000).feed(noise), noise);
});
