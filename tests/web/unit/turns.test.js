// Who speaks, by how loud both sides are.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Turns } from "../../../web/static/turns.js";

/** Blocks of 20 ms. @param {Turns} turns @param {number} said @param {number} heard @param {number} fromMs @param {number} toMs */
function hear(turns, said, heard, fromMs, toMs) {
  for (let nowMs = fromMs; nowMs < toMs; nowMs += 20) turns.hear(said, heard, nowMs);
}

test("a voice is one after some blocks, and until a pause longer than between words", () => {
  const turns = new Turns();
  hear(turns, 0.2, 0.2, 0, 1000);
  assert.deepEqual([turns.speaker, turns.hasBegun], [null, false]);
  hear(turns, 0.7, 0.2, 1000, 1200);
  assert.deepEqual([turns.speaker, turns.hasBegun], ["you", true]);
  hear(turns, 0, 0, 1200, 1800);
  assert.equal(turns.speaker, "you");
  hear(turns, 0, 0, 1800, 2000);
  assert.equal(turns.speaker, null);
});

test("a click is no voice", () => {
  const turns = new Turns();
  hear(turns, 0.9, 0, 0, 40);
  hear(turns, 0, 0, 40, 100);
  assert.equal(turns.hasBegun, false);
});

test("where both speak, the reply is named", () => {
  const turns = new Turns();
  hear(turns, 0.7, 0.7, 0, 200);
  assert.equal(turns.speaker, "reply");
  hear(turns, 0.7, 0, 200, 1200);
  assert.equal(turns.speaker, "you");
});
