// The same page in Firefox: a question without a microphone, one with it, and words of a recording.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { call, eventually, inState, openFirefox, openPage, saveRecording, says, Server, talkedFor } from "./lib.js";

const QUESTION = new URL("../../../clients/antiphon_client/clips/question-colour.ogg", import.meta.url).pathname;

/** @type {Server} */
let server;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  const models = ["--model", "tiny", "--model", "tiny-stt", "--model", "tiny-tts"];
  [server, browser] = await Promise.all([Server.start(...models, "--slots", "2"), openFirefox()]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

test("a recorded question is answered rightly, with names on both sides", async (t) => {
  const { page, close } = await openPage(browser, server.url);
  await call(page, ".chip");
  const transcript = async () => (await page.textContent("#transcript")) ?? "";
  await eventually("the answer", async () => /You\s*What is your name\?.*tiny\s*my name is robin/s.test(await transcript()), transcript);
  await page.click("#latency summary");
  t.diagnostic(`path: ${await page.textContent('[data-name="path"]')}`);
  await page.click("#talk");
  await inState(page, "ended");
  await close();
});

test("the microphone is heard, muted and recorded", async () => {
  const { page, close } = await openPage(browser, server.url);
  await call(page);
  await talkedFor(page, 3);
  await page.keyboard.press("m");
  await says(page, /You are muted/);
  const { frames, sides } = await saveRecording(page);
  assert.ok(frames > 2 * 24_000);
  assert.ok((sides[0] ?? []).some((it) => Math.abs(it) > 0.001), "the fake microphone has a tone");
  await page.click("#talk");
  await inState(page, "ended");
  await close();
});

test("a recording is written down, and a text read aloud", async () => {
  const { page, close } = await openPage(browser, `${server.url}/#transcribe`);
  await page.setInputFiles("#file", QUESTION);
  await says(page, /Written down\./);
  await page.evaluate(() => void (location.hash = "read"));
  await page.fill("#read-text", "the sky is blue");
  await page.click("#speak");
  await eventually("a word is marked", () => page.evaluate(() => document.querySelector("#spoken .is-spoken") !== null));
  await says(page, /Read to the end\./);
  await close();
});
