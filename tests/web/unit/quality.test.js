// What the numbers of a call are in a word, and whose fault it is.
import assert from "node:assert/strict";
import { test } from "node:test";

import { qualityOf } from "../../../web/static/quality.js";

const GOOD = { mouthToEarMs: 300, recentGaps: 0, recentLate: 0, serverMs: 6, silentMs: 40 };

test("a direct call without gaps is good", () => {
  assert.equal(qualityOf(GOOD), "Good");
  assert.equal(qualityOf({ ...GOOD, mouthToEarMs: null }), "Starting");
  assert.equal(qualityOf({ ...GOOD, recentLate: 1 }), "Good", "a late frame that is not heard is none to speak of");
});

test("delay and gaps make it worse", () => {
  assert.equal(qualityOf({ ...GOOD, mouthToEarMs: 600 }), "Fair");
  assert.equal(qualityOf({ ...GOOD, recentGaps: 1 }), "Fair");
});

test("what is slow is the server where it answers late, and the network where it does not", () => {
  for (const slow of [{ mouthToEarMs: 1000 }, { recentGaps: 3 }]) {
    assert.equal(qualityOf({ ...GOOD, ...slow }), "Network is slow");
    assert.equal(qualityOf({ ...GOOD, ...slow, recentLate: 4 }), "Server is behind");
    assert.equal(qualityOf({ ...GOOD, ...slow, serverMs: 81 }), "Server is behind");
  }
});

test("no reply for most of a second is a stall, whatever was before", () => {
  assert.equal(qualityOf({ ...GOOD, silentMs: 701 }), "No answer");
  assert.equal(qualityOf({ ...GOOD, mouthToEarMs: null, recentGaps: 9, silentMs: 5000 }), "No answer");
});
