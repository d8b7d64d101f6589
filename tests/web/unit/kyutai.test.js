// Messages of speech to text and back: the vectors that pin the server's bytes pin ours, and nonsense is refused.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { pack, PackedError, unpack } from "../../../web/static/kyutai.js";

const bytesOf = (/** @type {string} */ hex) => Uint8Array.from(Buffer.from(hex, "hex"));

for (const file of ["stt", "tts"]) {
  const url = new URL(`../../protocol/vectors/${file}.json`, import.meta.url);
  const { messages } = JSON.parse(readFileSync(url, "utf8"));
  const ours = messages.filter((/** @type {any} */ it) => it.from === "server" && it.message && it.hex);

  test(`${file}: every message of the server is read as it was meant`, () => {
    assert.ok(ours.length >= 5);
    for (const { name, hex, message } of ours) {
      const found = unpack(bytesOf(hex));
      // The server's own names differ in one: a word that is spoken travels as Text.
      assert.equal(found.type, message.kind === "Spoken" ? "Text" : message.kind, name);
      for (const key of ["text", "id", "message", "step_idx", "start_time", "stop_time", "start_s", "stop_s", "pcm"]) {
        const wanted = message[key];
        if (wanted === undefined || found[key] === undefined) continue;
        if (typeof wanted === "number") assert.ok(Math.abs(found[key] - wanted) < 1e-6, `${name}: ${key}`);
        else assert.deepEqual(found[key], wanted, `${name}: ${key}`);
      }
    }
  });

  test(`${file}: a message that is cut off anywhere is refused`, () => {
    for (const { hex } of ours) {
      const bytes = bytesOf(hex);
      for (let size = 0; size < Math.min(bytes.length, 60); size++) assert.throws(() => unpack(bytes.slice(0, size)), PackedError);
    }
  });
}

test("what is said to the server reads back", () => {
  assert.deepEqual({ ...unpack(pack({ type: "Marker", id: 1 })) }, { type: "Marker", id: 1 });
  assert.deepEqual({ ...unpack(pack({ type: "Text", text: "ä".repeat(300) })) }, { type: "Text", text: "ä".repeat(300) });
  const { pcm } = unpack(pack({ type: "Audio", pcm: Float32Array.of(0, 0.5, -1) }));
  assert.deepEqual(pcm, [0, 0.5, -1]);
  assert.deepEqual({ ...unpack(pack({ type: "Marker", id: 70_000 })) }, { type: "Marker", id: 70_000 });
  assert.throws(() => pack({ type: "Text", text: "x".repeat(70_000) }), /a text of 70000 bytes/);
});

test("what is no message is refused", () => {
  for (const hex of ["01", "c0", "90", "80", "81a474797065c0", "c1", "dd7fffffff", "df7fffffff", "91".repeat(40)]) {
    assert.throws(() => unpack(bytesOf(hex)), PackedError, hex);
  }
});
