// What is kept of a call: the bytes that the server reads, and what of a call goes on.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Outbox, STALE_PACKETS } from "../../../web/static/outbox.js";
import { Thread } from "../../../web/static/thread.js";

const VECTORS = JSON.parse(readFileSync(new URL("../../protocol/vectors/resume.json", import.meta.url), "utf-8"));

/** @param {Uint8Array | null} bytes */
const hex = (bytes) => Buffer.from(bytes ?? []).toString("hex");

/** @param {string} text */
const bytesOf = (text) => new Uint8Array(Buffer.from(text, "hex"));

/** @param {{ seq: number, frame: number }} got */
function threadThatGot({ seq, frame }) {
  const thread = new Thread();
  thread.offered({ token: VECTORS.token, window_s: 30 });
  const text = Uint8Array.of(2, 0x68);
  for (let number = 0; number <= seq; number++) assert.deepEqual(thread.heed(numbered(number, text)), text);
  if (frame >= 0) {
    const audio = new Uint8Array(9);
    audio[0] = 0x11;
    new DataView(audio.buffer).setUint32(1, frame, true);
    thread.heed(audio);
  }
  return thread;
}

/**
 * @param {number} seq
 * @param {Uint8Array} message
 */
function numbered(seq, message) {
  const bytes = new Uint8Array(5 + message.length);
  bytes[0] = 0x12;
  new DataView(bytes.buffer).setUint32(1, seq, true);
  bytes.set(message, 5);
  return bytes;
}

test("claims and acknowledgements are the bytes of the vectors", () => {
  for (const vector of VECTORS.claims) assert.equal(hex(threadThatGot(vector).claim(vector.input_frame)), vector.hex);
  for (const vector of VECTORS.acks) assert.equal(hex(threadThatGot(vector).ack(0)), vector.hex);
  for (const vector of VECTORS.numbered) {
    const thread = threadThatGot({ seq: vector.seq - 1, frame: -1 });
    assert.equal(hex(thread.heed(bytesOf(vector.hex))), vector.message);
  }
});

test("what came before is passed over, and what is missing is an error", () => {
  const thread = threadThatGot({ seq: 1, frame: -1 });
  assert.equal(thread.heed(numbered(1, Uint8Array.of(2))), null);
  assert.throws(() => thread.heed(numbered(3, Uint8Array.of(2))), /message 3 follows message 1/);
});

test("a call can be gone on with for as long as the server said, and is acknowledged each second", () => {
  const thread = threadThatGot({ seq: -1, frame: -1 });
  assert.equal(thread.ack(0) === null, false);
  assert.equal(thread.ack(999), null);
  assert.equal(thread.ack(1000) === null, false);
  thread.lost(5000);
  assert.equal(thread.isInTime(34_999), true);
  assert.equal(thread.isInTime(35_000), false);
  thread.end();
  assert.equal(thread.isInTime(5001), false);
});

test("the outbox sends again what it still holds", () => {
  const outbox = new Outbox();
  const socket = { bufferedAmount: 0 };
  const put = (/** @type {number} */ from, /** @type {number} */ to) => {
    for (let number = from; number < to; number++) outbox.put({ packet: Uint8Array.of(number), atS: number });
  };
  const sent = () => [...outbox.takenBy(socket)].map(({ atS }) => atS);
  put(0, 6);
  assert.deepEqual(sent(), [0, 1, 2, 3, 4, 5]);
  outbox.goOnFrom(1);
  assert.deepEqual(sent(), [4, 5]);
  put(6, 6 + STALE_PACKETS);
  assert.equal(outbox.dropped, 0);
  put(26, 28);
  assert.equal(outbox.dropped, 2);
  assert.equal(outbox.firstFrame, 2);
  outbox.goOnFrom(3);
  assert.equal(sent()[0], 12);
});
