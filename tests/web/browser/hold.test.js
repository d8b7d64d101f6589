// Hold to talk: heard while the button or the key is held, and not before or after.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Server, call, eventually, inState, openBrowser, openPage, openSettings, says, saysMuted } from "./lib.js";

/** @typedef {import("playwright-core").Page} Page */

/** @type {Server} */
let server;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  [server, browser] = await Promise.all([Server.start("--backend", "null", "--slots", "2"), openBrowser()]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

/** @param {Page} page */
const level = (page) => page.evaluate(() => Number(document.getElementById("level-you")?.style.getPropertyValue("--level")));
/** @param {Page} page */
const isHeard = (page) => eventually("a voice", async () => (await level(page)) > 0.2, () => level(page));
/** @param {Page} page */
const isSilent = (page) => eventually("silence", async () => (await level(page)) === 0, () => level(page));

test("the key T and the button are held to be heard, and let go to be silent", async () => {
  const { page, complaints, close } = await openPage(browser, server.url);
  await call(page);
  assert.deepEqual(await page.locator(".round kbd:visible").allTextContents(), ["M", "T"]);
  await page.keyboard.press("m");
  await isSilent(page);
  await page.keyboard.down("t");
  await says(page, /You are heard\. Let go/);
  await isHeard(page);
  await page.keyboard.up("t");
  await saysMuted(page);
  await isSilent(page);

  await page.hover("#hold");
  await page.mouse.down();
  await isHeard(page);
  assert.equal(await page.getAttribute("#hold", "aria-pressed"), "true");
  await page.mouse.move(5, 5); // a finger that slips still holds
  await says(page, /You are heard/);
  await page.mouse.up();
  await isSilent(page);

  await page.focus("#hold");
  await page.keyboard.down("Space");
  await isHeard(page);
  await page.evaluate(() => dispatchEvent(new Event("blur"))); // let go in another window
  await isSilent(page);
  await page.keyboard.up("Space");
  await page.$eval("#hold", (it) => /** @type {HTMLElement} */ (it).click()); // as a screen reader does
  await isHeard(page);
  await page.click("#talk");
  await inState(page, "ended");
  assert.equal(await page.getAttribute("#hold", "aria-pressed"), "false");
  assert.deepEqual(complaints, []);
  await close();
});

test("a visitor who chose it begins unheard, in the next visit too", async () => {
  const { page, complaints, close } = await openPage(browser, server.url);
  await openSettings(page);
  await page.selectOption('select[name="You are heard"]', "held");
  await page.reload();
  await page.waitForSelector("body[data-ready]");
  await call(page);
  await says(page, /Hold to talk, let go to listen\./);
  await isSilent(page);
  await page.keyboard.down("T");
  await isHeard(page);
  await page.keyboard.up("T");
  await isSilent(page);
  assert.deepEqual(complaints, []);
  await close();
});

test("a recorded question is heard while the visitor is muted", async () => {
  const { page, complaints, close } = await openPage(browser, server.url);
  await call(page);
  await page.keyboard.press("m");
  await isSilent(page);
  await page.click(".chip");
  await isHeard(page);
  await page.waitForSelector('.chip[aria-disabled="false"]');
  await isSilent(page);
  assert.deepEqual(complaints, []);
  await close();
});

test("a caller who was heard before is heard after the key T", async () => {
  const { page, close } = await openPage(browser, server.url);
  await call(page);
  await page.keyboard.press("t");
  assert.equal(await page.textContent("#mute-label"), "Mute");
  await isHeard(page);
  await close();
});

test("a call of recorded questions has no microphone to mute, until it is turned on", async () => {
  const { page, complaints, close } = await openPage(browser, server.url);
  await call(page, ".chip");
  assert.deepEqual([await page.isVisible("#mute"), await page.isVisible("#hold")], [false, false]);
  await page.click("#microphone-on");
  await page.waitForSelector("#mute:visible");
  assert.equal(await page.isVisible("#microphone-on"), false);
  await page.waitForSelector('.chip[aria-disabled="false"]'); // the recorded voice ends
  await isHeard(page);
  assert.deepEqual(complaints, []);
  await close();
});
