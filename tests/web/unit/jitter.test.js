// The contract at the top of jitter.js, sentence by sentence, in simulated time.
import assert from "node:assert/strict";
import { test } from "node:test";

import { JitterBuffer } from "../../../web/static/jitter.js";

const RATE = 48_000;
const MS = RATE / 1000;
const FRAME = 80 * MS;

/** A frame of a tone that never stops, so that cuts show as jumps.
 * @param {number} frame
 */
const tone = (frame) =>
  Float32Array.from({ length: FRAME }, (_, index) => 0.5 * Math.sin((2 * Math.PI * 200 * (frame * FRAME + index)) / RATE));

/**
 * Play `ms` of time; `arrivals` are when which frame comes.
 *
 * @param {JitterBuffer} buffer
 * @param {number} fromMs
 * @param {number} ms
 * @param {Map<number, number[]>} arrivals by millisecond
 */
function play(buffer, fromMs, ms, arrivals) {
  const heard = new Float32Array(ms * MS);
  /** @type {{ frame: number, atMs: number }[]} */
  const begun = [];
  for (let now = 0; now < ms; now++) {
    for (const frame of arrivals.get(fromMs + now) ?? []) buffer.push(frame, tone(frame));
    const block = heard.subarray(now * MS, (now + 1) * MS);
    for (const it of buffer.pull(block)) begun.push({ frame: it.frame, atMs: fromMs + now + it.offset / MS });
  }
  return { heard, begun };
}

/**
 * @param {number} count
 * @param {(frame: number) => number} late
 */
function schedule(count, late = () => 0) {
  /** @type {Map<number, number[]>} */
  const arrivals = new Map();
  let last = 0;
  for (let frame = 0; frame < count; frame++) {
    last = Math.max(last, frame * 80 + Math.round(late(frame))); // TCP keeps the order
    arrivals.set(last, [...(arrivals.get(last) ?? []), frame]);
  }
  return arrivals;
}

/** @param {Float32Array} samples */
const largestJump = (samples) => samples.reduce((most, it, index) => Math.max(most, Math.abs(it - (samples[index - 1] ?? 0))), 0);
const TONE_JUMP = 0.5 * 2 * Math.PI * (200 / RATE) * 1.05;

test("silence until the first piece has waited 40 ms, then every sample in order", () => {
  const buffer = new JitterBuffer(RATE);
  const { heard, begun } = play(buffer, 0, 1000, schedule(13));
  assert.equal(begun[0]?.frame, 0);
  assert.ok(Math.abs((begun[0]?.atMs ?? 0) - 40) < 1);
  assert.deepEqual(begun.map((it) => it.frame), [...Array(12).keys()]);
  assert.ok(heard.subarray(0, 40 * MS).every((it) => it === 0));
  const expected = [...Array(12).keys()].flatMap((frame) => [...tone(frame)]);
  const from = Math.round((begun[0]?.atMs ?? 0) * MS);
  for (let index = 5 * MS; index < 900 * MS; index++) assert.equal(heard[from + index], Math.fround(expected[index] ?? 0));
  assert.equal(buffer.gaps, 0);
});

test("pieces of any size give the same sound", () => {
  const whole = new JitterBuffer(RATE);
  const parts = new JitterBuffer(RATE);
  const out = [new Float32Array(FRAME), new Float32Array(FRAME)];
  for (let frame = 0; frame < 20; frame++) {
    whole.push(frame, tone(frame));
    for (let start = 0; start < FRAME; start += 777) parts.push(frame, tone(frame).subarray(start, start + 777));
    const begun = [whole, parts].map((buffer, index) => buffer.pull(out[index] ?? new Float32Array(0)));
    assert.deepEqual(begun[0], begun[1]);
    assert.deepEqual(out[0], out[1]);
  }
});

test("jitter below the lead is not heard", () => {
  const buffer = new JitterBuffer(RATE);
  const { heard } = play(buffer, 0, 4000, schedule(50, (frame) => (frame % 5 === 2 ? 35 : 0)));
  assert.equal(buffer.gaps, 0);
  assert.equal(buffer.droppedMs, 0);
  assert.ok(largestJump(heard) < TONE_JUMP);
});

test("an underrun fades, counts as one gap, and lengthens the lead by the lateness", () => {
  const buffer = new JitterBuffer(RATE);
  const { heard } = play(buffer, 0, 3000, schedule(30, (frame) => (frame >= 10 ? 100 : 0)));
  assert.equal(buffer.gaps, 1);
  assert.ok(Math.abs(buffer.leadMs - 100) < 2, `lead ${buffer.leadMs}`);
  assert.ok(buffer.gapMs >= 150 && buffer.gapMs < 170, `gap ${buffer.gapMs}`);
  assert.ok(largestJump(heard) < TONE_JUMP + 0.5 / (5 * MS) + 0.001);
});

test("the lead grows by at least 20 and at most 80 ms, to no more than 300", () => {
  const slightly = new JitterBuffer(RATE);
  play(slightly, 0, 3000, schedule(30, (frame) => (frame >= 10 ? 45 : 0)));
  assert.ok(Math.abs(slightly.leadMs - 60) < 1, `lead ${slightly.leadMs}`);
  const badly = new JitterBuffer(RATE);
  play(badly, 0, 3000, schedule(30, (frame) => (frame >= 10 ? 500 : 0)));
  assert.ok(Math.abs(badly.leadMs - 120) < 1, `lead ${badly.leadMs}`);
  const always = new JitterBuffer(RATE);
  play(always, 0, 30_000, schedule(300, (frame) => frame * 20));
  assert.ok(always.leadMs <= 300);
  assert.ok(always.leadMs > 200, `lead ${always.leadMs}`);
});

test("the end of a conversation is no gap", () => {
  const buffer = new JitterBuffer(RATE);
  play(buffer, 0, 5000, schedule(10));
  assert.equal(buffer.gaps, 0);
  assert.equal(buffer.isPlaying, false);
});

test("a standing excess is played off 2 % fast, without a jump, down to the lead", () => {
  const buffer = new JitterBuffer(RATE);
  // Frames come 100 ms early from the 20th on, as after a pause of the network that slowed the first ones.
  const arrivals = schedule(250, (frame) => (frame < 20 ? 100 : 0));
  const { heard, begun } = play(buffer, 0, 16_000, arrivals);
  assert.equal(buffer.gaps, 0);
  assert.equal(buffer.droppedMs, 0);
  const lag = /** @param {number} frame */ (frame) => (begun.find((it) => it.frame === frame)?.atMs ?? NaN) - 80 * frame;
  assert.ok(lag(19) > 135, `before ${lag(19)}`);
  assert.ok(lag(190) < 60, `after ${lag(190)}`);
  assert.ok(largestJump(heard) < TONE_JUMP * 1.03 + 0.002);
});

test("a clock that is 200 ppm fast adds no delay over ten minutes", () => {
  const buffer = new JitterBuffer(8000);
  const out = new Float32Array(80); // 10 ms
  const frame = new Float32Array(640);
  let sent = 0;
  let most = 0;
  for (let block = 0; block < 60_000; block++) {
    if (block * 10 * 1.0002 >= sent * 80) buffer.push(sent++, frame);
    buffer.pull(out);
    if (block > 1000) most = Math.max(most, buffer.depthMs);
  }
  assert.equal(buffer.gaps, 0);
  assert.ok(most <= 80 + 40 + 20 + 15, `depth ${most}`);
});

test("an overrun is cut to the lead and a frame, and counted", () => {
  const buffer = new JitterBuffer(RATE);
  const arrivals = schedule(40, (frame) => (frame >= 10 && frame < 20 ? (20 - frame) * 80 : 0));
  const { heard, begun } = play(buffer, 0, 4000, arrivals);
  assert.ok(buffer.droppedMs > 300, `dropped ${buffer.droppedMs}`);
  const last = begun.at(-1);
  assert.ok((last?.atMs ?? 0) - 80 * (last?.frame ?? 0) <= buffer.leadMs + 121);
  assert.ok(largestJump(heard) < 0.06, `jump ${largestJump(heard)}`);
});

test("a flush forgets at once what is old, keeps what is new, and refuses what still comes", () => {
  const buffer = new JitterBuffer(RATE);
  play(buffer, 0, 100, new Map([[0, [0, 1]]]));
  buffer.flush(2);
  const { heard } = play(buffer, 100, 50, new Map());
  assert.ok(heard.subarray(5 * MS).every((it) => it === 0));
  assert.ok(largestJump(heard.subarray(1)) < 0.05);
  assert.equal(buffer.depthMs, 0);
  buffer.push(1, tone(1));
  assert.equal(buffer.depthMs, 0);
  buffer.push(2, tone(2));
  buffer.push(3, tone(3));
  buffer.flush(3);
  assert.equal(buffer.depthMs, 80);
  const { begun } = play(buffer, 150, 100, new Map());
  assert.deepEqual(begun.map((it) => it.frame), [3]);
  assert.equal(buffer.gaps, 0);
});

test("a flush leaves alone what is not older", () => {
  const buffer = new JitterBuffer(RATE);
  play(buffer, 0, 60, new Map([[0, [5]]]));
  const before = buffer.depthMs;
  buffer.flush(5);
  assert.equal(buffer.depthMs, before);
  assert.ok(buffer.isPlaying);
});

test("calm makes the lead shorter, by more when it was not needed, to 20 ms", () => {
  const even = new JitterBuffer(RATE);
  play(even, 0, 10_500, schedule(140));
  assert.ok(Math.abs(even.leadMs - 32) < 0.1, `lead ${even.leadMs}`);
  const needed = new JitterBuffer(RATE);
  play(needed, 0, 10_500, schedule(140, (frame) => (frame % 10 === 5 ? 30 : 0)));
  assert.ok(Math.abs(needed.leadMs - 38) < 0.1, `lead ${needed.leadMs}`);
  const long = new JitterBuffer(8000);
  const out = new Float32Array(640);
  for (let frame = 0; frame < 3000; frame++) {
    long.push(frame, out);
    long.pull(out);
  }
  assert.equal(long.leadMs, 20);
  assert.equal(long.gaps, 0);
});

test("whatever comes, no more waits than the lead, a frame and 120 ms, and the sound stays in bounds", () => {
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  for (let round = 0; round < 20; round++) {
    const buffer = new JitterBuffer(8000);
    const out = new Float32Array(80);
    for (let step = 0, frame = 0; step < 400; step++) {
      const count = random() < 0.1 ? 8 * random() : random() < 0.2 ? 1 : 0;
      for (let piece = 0; piece < count; piece++) buffer.push(frame++, new Float32Array(Math.ceil(640 * random())).fill(0.5));
      if (random() < 0.02) buffer.flush(frame - Math.floor(3 * random()));
      assert.ok(buffer.depthMs <= buffer.leadMs + 200.2, `depth ${buffer.depthMs}`);
      buffer.pull(out);
      assert.ok(out.every((it) => it >= 0 && it <= 1.0001));
    }
  }
});
