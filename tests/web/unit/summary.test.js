// A call in a line.
import assert from "node:assert/strict";
import { test } from "node:test";

import { summaryOf as summary } from "../../../web/static/summary.js";

/** As it is read. @param {Parameters<typeof summary>[0]} call */
const summaryOf = (call) => summary(call).replaceAll("\u00a0", " ");

const CALL = { seconds: 84.4, said: 9, heard: 14, name: "tiny", typicalMs: 302.4, gaps: 0 };

test("a call is its time, its words and its delay", () => {
  assert.equal(summaryOf(CALL), "1:24 of talk · 9 words from you · 14 words from tiny · 302 ms from mouth to ear · no gaps");
});

test("what is not known is left out", () => {
  assert.equal(summaryOf({ ...CALL, said: 0, heard: 0, typicalMs: null, gaps: 2 }), "1:24 of talk · 2 gaps");
});

test("a line breaks between facts alone", () => {
  assert.deepEqual(summary(CALL).split(" ").map((it) => it.split("\u00a0").at(-1)), ["·", "·", "·", "·", "gaps"]);
});

test("one is one", () => {
  assert.match(summaryOf({ ...CALL, said: 1, heard: 1, gaps: 1 }), /1 word from you · 1 word from tiny .* 1 gap$/);
});
