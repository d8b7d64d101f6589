// A text that is read aloud: which of its words are heard, and which the model cannot say.
import assert from "node:assert/strict";
import { test } from "node:test";

import { pack } from "../../../web/static/kyutai.js";
import { element } from "./page.js";

const { Read } = await import("../../../web/static/read.js");

/** A view that was sent words, of which it has heard so many seconds. @param {[string, number, number][]} words @param {number} heardS @returns {any} */
function view(words, heardS) {
  const it = /** @type {any} */ (new Read(/** @type {any} */ ({ all: [], key: "" }), /** @type {any} */ ({ log() {} })));
  it.isShown = true;
  it._socket = {};
  it._total = words.length;
  it._player = { heardS, hasSound: true, isOver: false };
  it._words.children = [];
  for (const [text, start_s, stop_s] of words) {
    const message = pack({ type: "Text", text, start_s, stop_s });
    it._received(it._socket, "", message.slice().buffer);
  }
  return it;
}

/** @param {any} it */
const classes = (it) => it._spoken.map((/** @type {any} */ word) => word.element.className ?? "");

test("a word that takes no time is marked as not said, in sight and for screen readers", () => {
  const it = view([["the", 0, 1], ["天", 1, 1], ["sky", 1, 2]], 0);
  assert.deepEqual(classes(it), ["", "is-unsaid", ""]);
  assert.deepEqual(it._spoken[1].element.children.map((/** @type {any} */ note) => note.textContent), [" (not said)"]);
  assert.equal(element("unsaid-note").hidden, false);
});

test("where every word is heard nothing is explained", () => {
  view([["the", 0, 1], ["sky", 1, 2]], 0);
  assert.equal(element("unsaid-note").hidden, true);
});

test("the word that is heard is marked, not the one that is not said", () => {
  const it = view([["the", 0, 1], ["天", 1, 1]], 1.5);
  /** @type {string[]} */
  const marked = [];
  for (const { element: word } of it._spoken) word.classList.toggle = (/** @type {string} */ _, /** @type {boolean} */ on) => on && marked.push(word.textContent);
  it._follow();
  assert.deepEqual(marked, ["the"]);
});
