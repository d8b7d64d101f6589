// The plot: numbers of any length stand whole beside it.
import assert from "node:assert/strict";
import { test } from "node:test";

import { History } from "../../../web/static/latency.js";
import { drawPlot } from "../../../web/static/plot.js";

const CHARACTER_PX = 7;

/** Where the numbers of a plot of these values begin. @param {number[]} values */
function labels(values) {
  /** @type {{ text: string, x: number }[]} */
  const found = [];
  const context = new Proxy(/** @type {Record<string, unknown>} */ ({}), {
    get: (_, name) => {
      if (name === "measureText") return (/** @type {string} */ text) => ({ width: CHARACTER_PX * text.length });
      if (name === "fillText") return (/** @type {string} */ text, /** @type {number} */ x) => found.push({ text, x: x - CHARACTER_PX * text.length });
      return () => {};
    },
    set: () => true,
  });
  const canvas = { clientWidth: 600, clientHeight: 128, getContext: () => context };
  const history = new History(240);
  for (const value of values) history.push(value, false);
  Object.assign(globalThis, { getComputedStyle: () => ({ fontFamily: "", getPropertyValue: () => "" }), devicePixelRatio: 1 });
  drawPlot(/** @type {any} */ (canvas), history);
  return found;
}

for (const [value, top] of /** @type {const} */ ([[80, "300"], [4200, "5000"], [26_226, "27000"], [712_000, "712000"]])) {
  test(`a delay of ${value} ms has numbers up to ${top}, none of them cut`, () => {
    const found = labels([200, value]);
    assert.deepEqual(found.map(({ text }) => text), ["0", String(Number(top) / 2), top]);
    assert.ok(found.every(({ x }) => x >= 0), JSON.stringify(found));
  });
}
