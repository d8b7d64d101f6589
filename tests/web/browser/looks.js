// A state of the page as every visitor may see it: three sizes, in light, dark and the system's colours.
// With a folder for pictures axe looks at each; without, at the phone in all colours, and the width at every size.
import assert from "node:assert/strict";
import { test } from "node:test";

import axeCore from "axe-core";

import { openPage } from "./lib.js";

const SIZES = { 1280: { width: 1280, height: 800 }, 390: { width: 390, height: 844 }, 844: { width: 844, height: 390 } };
const COLOURS = /** @type {const} */ ({
  light: { colorScheme: "light", forcedColors: "none" },
  dark: { colorScheme: "dark", forcedColors: "none" },
  forced: { colorScheme: "light", forcedColors: "active" },
});

/** A folder for a picture of each look. */
const PICTURES = process.env["ANTIPHON_TEST_PICTURES"];

/**
 * @typedef {import("playwright-core").Page} Page
 *
 * @typedef {object} State
 * @property {string} name
 * @property {() => string} url
 * @property {(page: Page) => Promise<unknown>} enter brings a fresh page into the state
 * @property {() => unknown} [leave]
 */

/** A test for each state. @param {() => import("playwright-core").Browser} browser @param {State[]} states */
export function testLooks(browser, states) {
  for (const { name, url, enter, leave } of states) {
    test(`axe finds nothing: ${name}`, async () => {
      const { page, close } = await openPage(browser(), url());
      try {
        await enter(page);
        await stopClock(page);
        await page.evaluate(axeCore.source);
        assert.deepEqual(await lookedAt(page, name), []);
      } finally {
        await leave?.();
        await close();
      }
    });
  }
}

/** @param {Page} page @param {string} name @returns {Promise<string[]>} what is wrong, in which look */
async function lookedAt(page, name) {
  const found = [];
  for (const [size, viewport] of Object.entries(SIZES)) {
    await page.setViewportSize(viewport);
    for (const [colour, media] of PICTURES || viewport === SIZES[390] ? Object.entries(COLOURS) : []) {
      await page.emulateMedia(media);
      // A colour on its way to another is none to judge.
      await page.evaluate(() => document.getAnimations().forEach((change) => change.finish()));
      // Colours change neither names nor places: only what depends on them is looked at again.
      const isFirst = colour === "light";
      found.push(...(await violations(page, isFirst)).map((it) => `${name} ${size} ${colour}: ${it}`));
      if (PICTURES) await page.screenshot({ path: `${PICTURES}/${name.replaceAll(/\W+/g, "-")}-${size}-${colour}.png` });
    }
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    if (width > viewport.width) found.push(`${name} ${size}: the page is ${width} wide`);
  }
  return found;
}

/** @param {Page} page @param {boolean} isWhole @returns {Promise<string[]>} */
function violations(page, isWhole) {
  return page.evaluate(async (all) => {
    const { axe } = /** @type {{ axe: typeof import("axe-core") }} */ (/** @type {unknown} */ (globalThis));
    const options = /** @type {import("axe-core").RunOptions} */ ({ resultTypes: ["violations"] });
    if (!all) options.runOnly = ["color-contrast"];
    const results = await axe.run(document, options);
    return results.violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id} at ${node.target.join(" ")}: ${node.failureSummary}`));
  }, isWhole);
}

/** A state that time would end stays. @param {Page} page */
const stopClock = (page) =>
  page.evaluate(() => {
    const nowMs = performance.now();
    performance.now = () => nowMs;
  });
