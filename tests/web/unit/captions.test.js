// Words with times as lines, text and subtitles.
import assert from "node:assert/strict";
import { test } from "node:test";

import { asSrt, asText, lines, pauseBefore } from "../../../web/static/captions.js";

const word = (/** @type {string} */ text, /** @type {number} */ startS, stopS = /** @type {number | null} */ (startS + 0.3)) => ({ text, startS, stopS });

test("a pause begins a line", () => {
  const words = [word("the", 0.1), word("sky", 0.5), word("is", 2.5)];
  assert.deepEqual(lines(words).map((line) => line.length), [2, 1]);
  assert.equal(asText(words), "the sky\nis\n");
});

test("a line knows the silence before it, and one that only went on has none", () => {
  const [first, second] = [[word("the", 0.1), word("sky", 0.5)], [word("is", 2.5)]];
  assert.equal(pauseBefore(first, second)?.toFixed(2), "1.70");
  assert.equal(pauseBefore(first, [word("was", 1.2)]), null);
  assert.equal(pauseBefore(undefined, second), null);
});

test("a pause as between sentences begins a line, and so does time", () => {
  const words = [word("yes", 0.1), word("the", 0.6), word("sky", 1.6)];
  assert.deepEqual(lines(words).map((line) => line.length), [2, 1]);
  const slow = Array.from({ length: 20 }, (_, index) => word("no", index * 0.8));
  for (const line of lines(slow)) assert.ok(/** @type {any} */ (line.at(-1)).stopS - /** @type {any} */ (line[0]).startS <= 7);
});

test("a line is no longer than fits under a picture", () => {
  const words = Array.from({ length: 40 }, (_, index) => word("twelve chars", index * 0.35));
  const longest = asText(words).split("\n").map((line) => line.length);
  assert.ok(Math.max(...longest) <= 80, String(longest));
  assert.equal(lines(words).flat().length, 40);
});

test("subtitles have numbers, times and text; a word without an end has one", () => {
  const words = [word("one", 0.04), word("two", 3661.5, null)];
  assert.equal(
    asSrt(words),
    "1\n00:00:00,040 --> 00:00:00,340\none\n\n2\n01:01:01,500 --> 01:01:01,900\ntwo\n",
  );
  assert.equal(asSrt([]), "");
});
