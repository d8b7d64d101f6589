// Speech written down and texts read aloud: which views there are follows from the server, and links lead to them.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";

import { eventually, openBrowser, openPage, readWav, rms, says, Server } from "./lib.js";

const QUESTION = new URL("../../../clients/antiphon_client/clips/question-colour.ogg", import.meta.url).pathname;

/** @type {Server} */
let server;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  const models = ["--model", "tiny-stt", "--model", "tiny-tts"];
  [server, browser] = await Promise.all([Server.start(...models, "--slots", "1"), openBrowser()]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

/** @param {import("playwright-core").Page} page @param {string} button */
async function saved(page, button) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.click(button)]);
  return { name: download.suggestedFilename(), bytes: await readFile(await download.path()) };
}

test("a server without a talker shows what it has, and writes down a recording", async () => {
  const { page, complaints, close } = await openPage(browser, server.url);
  assert.equal(await page.getAttribute("body", "data-view"), "transcribe");
  assert.equal(await page.isVisible("#talk"), false);
  assert.deepEqual(await page.locator("#views a:visible").allTextContents(), ["Transcribe", "Read aloud"]);
  assert.match((await page.textContent("#view-transcribe")) ?? "", /tiny-stt.*recogniser/s);
  await page.setInputFiles("#file", QUESTION);
  await says(page, /Written down\./);
  assert.match((await page.textContent("#words")) ?? "", /colour|sky/);
  const text = await saved(page, "#words-txt");
  assert.match(text.name, /\.txt$/);
  assert.match(text.bytes.toString(), /colour|sky/);
  const srt = await saved(page, "#words-srt");
  assert.match(srt.bytes.toString(), /^1\n00:00:0\d,\d\d\d --> 00:00:0\d,\d\d\d\n\S/);
  await page.setInputFiles("#file", { name: "no.wav", mimeType: "audio/wav", buffer: Buffer.from("no sound") });
  await says(page, /This did not work\./);
  await page.waitForSelector("#listen-playback", { state: "hidden" });
  assert.deepEqual(complaints.filter((it) => !it.includes("400")), []);
  await close();
});

test("a sample is written down, and what takes too long is cancelled", async () => {
  const { page, complaints, close } = await openPage(browser, `${server.url}/#transcribe`);
  await page.click("#samples .chip");
  await says(page, /Written down\./);
  assert.match((await page.textContent("#words")) ?? "", /name/);
  server.freeze(true);
  await page.setInputFiles("#file", QUESTION);
  await page.waitForSelector("#transcribe-progress:visible");
  await page.click("text=Cancel");
  await says(page, /Cancelled\./);
  server.freeze(false);
  await page.click("#samples .chip");
  await says(page, /Written down\./);
  assert.deepEqual(complaints, []);
  await close();
});

test("what the microphone hears is written down while it is said", async () => {
  const { page, complaints, close } = await openPage(browser, `${server.url}/#transcribe`);
  await page.click("#listen");
  await eventually("words", async () => ((await page.textContent("#words")) ?? "").length > 20);
  await page.click("#listen");
  await says(page, /Written down\./);
  assert.equal(await page.textContent("#listen"), "Start listening");
  assert.deepEqual(complaints, []);
  await close();
});

test("a text is heard while it is made, its words are marked, and it can be saved", async () => {
  const { page, complaints, close } = await openPage(browser, `${server.url}/#read`);
  assert.equal(await page.getAttribute('#views a[aria-current="page"]', "data-view"), "read");
  await page.fill("#read-text", "the sky is blue");
  await page.click("#speak");
  await page.waitForSelector("#spoken .is-spoken");
  await says(page, /Read to the end\./);
  assert.equal(await page.textContent("#spoken"), "the sky is blue");
  const { name, bytes } = await saved(page, "#read-save");
  const { sampleRate, sides } = readWav(bytes);
  assert.match(name, /\.wav$/);
  assert.equal(sampleRate, 24_000);
  assert.ok((sides[0]?.length ?? 0) > 24_000 && rms(/** @type {Float32Array} */ (sides[0])) > 0.01);
  await page.click('#views a[data-view="transcribe"]');
  await page.waitForSelector("#speak", { state: "hidden" });
  assert.deepEqual(complaints, []);
  await close();
});

test("a recording that is dropped on the page is written down", async () => {
  const { page, close } = await openPage(browser, `${server.url}/#transcribe`);
  const bytes = [...(await readFile(QUESTION))];
  const transfer = await page.evaluateHandle((data) => {
    const dropped = new DataTransfer();
    dropped.items.add(new File([Uint8Array.from(data)], "question.ogg", { type: "audio/ogg" }));
    return dropped;
  }, bytes);
  await page.dispatchEvent("main", "drop", { dataTransfer: transfer });
  await says(page, /Written down\./);
  assert.match((await page.textContent("#words")) ?? "", /colour|sky/);
  await close();
});

test("a server that stands still is shown while it hears and while it reads, and both go on", async () => {
  const { page, complaints, close } = await openPage(browser, `${server.url}/#transcribe`);
  await page.click("#listen");
  await says(page, /Go ahead/);
  await eventually("words", async () => ((await page.textContent("#words")) ?? "").length > 5);
  server.freeze(true);
  await says(page, /Waiting for the server/);
  server.freeze(false);
  await says(page, /Go ahead/);
  await page.click("#listen");
  await says(page, /Written down\./);

  await page.click('#views a[data-view="read"]');
  await page.fill("#read-text", "the sky is blue. my name is robin. a cow says moo. ".repeat(8));
  await page.click("#speak");
  await eventually("a word is marked", () => page.evaluate(() => document.querySelector("#spoken .is-spoken") !== null));
  server.freeze(true);
  await says(page, /Waiting for the server/);
  server.freeze(false);
  await says(page, /Reading aloud/);
  await page.click("#speak");
  assert.deepEqual(complaints, []);
  await close();
});

test("a place that is taken is said, with what to do", async () => {
  const first = await openPage(browser, `${server.url}/#transcribe`);
  await first.page.click("#listen");
  await says(first.page, /Go ahead/);
  const second = await openPage(browser, `${server.url}/#transcribe`);
  await second.page.click("#listen");
  await says(second.page, /This did not work\. Every place is taken: try again/);
  await first.close();
  await second.close();
});
