// Mouth to ear and jitter, from indices and times.
import assert from "node:assert/strict";
import { test } from "node:test";

import { History, LatencyMeter } from "../../../web/static/latency.js";

test("mouth to ear is from the frame's first sample said to its answer's first heard", () => {
  const meter = new LatencyMeter();
  for (let packet = 0; packet < 100; packet++) meter.said(480, 10 + packet * 0.02);
  meter.heard(7, 10 + 7 * 0.08 + 0.2, 0.03);
  assert.ok(Math.abs((meter.mouthToEarMs ?? 0) - 230) < 1e-6);
});

test("a frame that begins inside a packet begins there", () => {
  const meter = new LatencyMeter();
  meter.said(1000, 0);
  meter.said(1000, 1);
  meter.heard(1, 2, 0);
  assert.ok(Math.abs((meter.mouthToEarMs ?? 0) - (1000 - (920 / 24_000) * 1000)) < 1e-6);
});

test("a frame nobody said gives no number, and old ones are forgotten", () => {
  const meter = new LatencyMeter();
  meter.heard(3, 1, 0);
  assert.equal(meter.mouthToEarMs, null);
  for (let frame = 0; frame < 10_000; frame++) meter.said(1920, frame * 0.08);
  assert.ok(meter._saidAt.size <= 126);
});

test("even arrivals have no jitter, uneven ones what RFC 3550 says", () => {
  const even = new LatencyMeter();
  for (let frame = 0; frame < 50; frame++) even.arrived(frame, 500 + frame * 80);
  assert.equal(even.jitterMs, 0);
  assert.equal(even.frames, 50);
  const uneven = new LatencyMeter();
  for (let frame = 0; frame < 500; frame++) uneven.arrived(frame, frame * 80 + (frame % 2) * 10);
  assert.ok(Math.abs(uneven.jitterMs - 10) < 0.01, `${uneven.jitterMs}`);
  const again = uneven.jitterMs;
  uneven.arrived(499, 1e6); // another piece of the same frame
  assert.equal(uneven.jitterMs, again);
});

test("a history keeps the last so many", () => {
  const history = new History(3);
  for (let value = 0; value < 5; value++) history.push(value, value === 3);
  assert.deepEqual(history.points.map((it) => it.value), [2, 3, 4]);
  assert.deepEqual(history.points.map((it) => it.isMarked), [false, true, false]);
});
