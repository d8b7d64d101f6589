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

test("an example takes the place of an example, and stands below what the visitor wrote", () => {
  const it = view([], 0);
  it._player = null;
  /** @type {string[]} */
  const read = [];
  it._speak = (/** @type {string} */ text) => read.push(text);
  it._text.value = it._given = "The sky is blue. Snow is white.";
  it._take("Snow is white");
  assert.equal(it._text.value, "Snow is white");
  it._take("The sky is blue");
  assert.equal(it._text.value, "The sky is blue");
  it._text.value = "My own words.";
  it._take("Snow is white");
  it._take("Snow is white");
  assert.equal(it._text.value, "My own words.\nSnow is white");
  it._text.value = " ";
  it._take("The sky is blue");
  assert.equal(it._text.value, "The sky is blue");
  assert.deepEqual(read, ["Snow is white", "The sky is blue", "Snow is white", "Snow is white", "The sky is blue"]);
});

test("the examples stay in sight while a voice is tried, and end that", () => {
  const it = view([], 0);
  it._isPreview = true;
  it.show();
  assert.equal(element("read-samples").hidden, false);
  it._socket = null;
  let closed = 0;
  it._player = { close: async () => void (closed += 1) };
  it._speak = () => {};
  it._take("Snow is white");
  assert.deepEqual([closed, it._player], [1, null]);
  it._isPreview = false;
  it._player = {};
  it.show();
  assert.equal(element("read-samples").hidden, true);
});
