// What the numbers of a call are in a word.
import assert from "node:assert/strict";
import { test } from "node:test";

import { qualityOf } from "../../../web/static/quality.js";

const GOOD = { mouthToEarMs: 300, recentGaps: 0, silentMs: 40 };

test("a direct call without gaps is good", () => {
  assert.equal(qualityOf(GOOD), "Good");
  assert.equal(qualityOf({ ...GOOD, mouthToEarMs: null }), "Starting");
});

test("delay and gaps make it worse", () => {
  assert.equal(qualityOf({ ...GOOD, mouthToEarMs: 600 }), "Fair");
  assert.equal(qualityOf({ ...GOOD, recentGaps: 1 }), "Fair");
  assert.equal(qualityOf({ ...GOOD, mouthToEarMs: 1000 }), "Poor");
  assert.equal(qualityOf({ ...GOOD, recentGaps: 3 }), "Poor");
});

test("no reply for most of a second is a stall, whatever was before", () => {
  assert.equal(qualityOf({ ...GOOD, silentMs: 701 }), "Stalled");
  assert.equal(qualityOf({ mouthToEarMs: null, recentGaps: 9, silentMs: 5000 }), "Stalled");
});
