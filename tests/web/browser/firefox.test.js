// The same page in Firefox: a question without a microphone, one with it, and the two other views.
// One page for all: a second one is in the background, where Firefox draws nothing and no press is waited out.
import { after, before, test } from "node:test";

import { Server, call, eventually, inState, openFirefox, openPage, says, saysMuted } from "./lib.js";

const QUESTION = new URL("../../../clients/antiphon_client/clips/question-colour.ogg", import.meta.url).pathname;

/** @type {Server} */
let server;
/** @type {import("playwright-core").Browser} */
let browser;
/** @type {import("playwright-core").Page} */
let page;

before(async () => {
  const models = ["--model", "tiny", "--model", "tiny-stt", "--model", "tiny-tts"];
  [server, browser] = await Promise.all([Server.start(...models, "--slots", "2"), openFirefox()]);
  ({ page } = await openPage(browser, server.url));
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

test("a recorded question is answered, with names on both sides", async (t) => {
  await call(page, ".chip");
  const transcript = () => page.evaluate(() => document.getElementById("transcript")?.textContent ?? "");
  await eventually("an answer", async () => /You\s*What is your name\?.*tiny\s*\w+ \w+ \w+/s.test(await transcript()), transcript);
  t.diagnostic(`path: ${await page.evaluate(() => document.querySelector('[data-name="path"]')?.textContent)}`);
  await page.click("#talk");
  await inState(page, "ended");
});

test("the microphone is heard, and muted it is not", async () => {
  await page.click("#talk");
  if (await page.evaluate(() => document.querySelector("#unsaved[open]") !== null)) await page.click('#unsaved button[value="discard"]');
  await inState(page, "live");
  const level = () => page.evaluate(() => Number(document.getElementById("level-you")?.style.getPropertyValue("--level")));
  await eventually("the fake microphone's tone", async () => (await level()) > 0.2, level);
  await page.keyboard.press("m");
  await saysMuted(page);
  await eventually("silence", async () => (await level()) === 0, level);
  await page.click("#talk");
  await inState(page, "ended");
});

test("a recording is written down, and a text read aloud", async () => {
  await page.click('#views a[data-view="transcribe"]');
  await page.setInputFiles("#file", QUESTION);
  await says(page, /Written down\./);
  await page.click('#views a[data-view="read"]');
  await page.fill("#read-text", "the sky is blue");
  await page.click("#speak");
  await eventually("a word is marked", () => page.evaluate(() => document.querySelector("#spoken .is-spoken") !== null));
  await says(page, /Read to the end\./);
});
