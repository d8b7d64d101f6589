// The page reads and writes the same bytes as the server: both hold to tests/protocol/vectors.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { decode, encode, ProtocolError, TAG } from "../../../web/static/protocol.js";

/** @type {{ messages: any[], invalid: any[] }} */
const VECTORS = JSON.parse(readFileSync(new URL("../../protocol/vectors/messages.json", import.meta.url), "utf-8"));

/** @param {string} hex */
const bytesOf = (hex) => new Uint8Array(Buffer.from(hex, "hex"));

/** @param {Uint8Array} bytes */
const hexOf = (bytes) => Buffer.from(bytes).toString("hex");

/** The vector's message with its byte strings as bytes.
 * @param {any} message
 */
const messageOf = (message) => ("data" in message ? { ...message, data: bytesOf(message.data) } : message);

for (const vector of VECTORS.messages) {
  if (vector.ways !== "encode") {
    test(`reads ${vector.name}`, () => {
      const message = decode(bytesOf(vector.hex));
      const found = "data" in message ? { ...message, data: hexOf(message.data) } : message;
      assert.deepEqual(found, vector.message);
    });
  }
  if (vector.ways !== "decode") {
    test(`writes ${vector.name}`, () => assert.equal(hexOf(encode(messageOf(vector.message))), vector.hex));
  }
}

for (const vector of VECTORS.invalid) {
  test(`refuses ${vector.name}`, () => assert.throws(() => decode(bytesOf(vector.hex)), ProtocolError));
}

test("every tag has a vector", () => {
  const tags = new Set(VECTORS.messages.map((vector) => parseInt(vector.hex.slice(0, 2), 16)));
  for (const tag of Object.values(TAG)) assert.ok(tags.has(tag), `tag ${tag}`);
});
