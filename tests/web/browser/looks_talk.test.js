// Every state of a conversation, in every look.
import { after, before } from "node:test";

import { Server, call, eventually, inState, openBrowser, openSettings, says, saysMuted, talkedFor } from "./lib.js";
import { testLooks } from "./looks.js";

/** @typedef {import("./looks.js").Page} Page */

/** Free, and full: the tests end the calls of the first, and nothing ends the one of the second. @type {Server} */
let server;
/** @type {Server} */
let full;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  const models = ["--model", "tiny", "--model", "tiny-stt", "--model", "tiny-tts"];
  const one = ["--backend", "null", "--slots", "1"];
  [server, full, browser] = await Promise.all([
    Server.start(...models, "--slots", "2"),
    Server.start(...one, "--max-queue", "1", "--max-sessions-per-address", "0"),
    openBrowser(),
  ]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
  await full?.stop();
});

/** @param {Page} page @param {string} name */
const withoutMicrophone = (page, name) =>
  page.evaluate((error) => {
    navigator.mediaDevices.getUserMedia = () => (error ? Promise.reject(new DOMException("no", error)) : new Promise(() => {}));
  }, name);

/** @param {Page} page @param {string} problem */
async function refused(page, problem) {
  await withoutMicrophone(page, problem);
  await page.click("#talk");
  await says(page, /microphone/);
}

/** Words of both sides. @param {Page} page */
async function conversed(page) {
  await call(page, ".chip");
  await eventually("words", async () => ((await page.textContent("#transcript")) ?? "").length > 30);
}

/** @param {Page} page */
async function ended(page) {
  await conversed(page);
  await page.click("#talk");
  await inState(page, "ended");
}

/** @param {Page} page the first of the two takes the only place */
async function queued(page) {
  const other = await browser.newPage();
  await other.goto(full.url);
  await call(other);
  await page.click("#talk");
  await says(page, /you are next/);
  page.once("close", () => void other.close());
}

const url = () => server.url;

testLooks(() => browser, [
  { name: "talk before the call", url, enter: async () => {} },
  { name: "talk with a question", url, enter: conversed },
  { name: "talk with the microphone", url, enter: (page) => call(page) },
  {
    name: "talk held",
    url,
    enter: async (page) => {
      await call(page);
      await page.keyboard.down("t");
      await says(page, /You are heard/);
    },
  },
  {
    name: "talk muted",
    url,
    enter: async (page) => {
      await call(page);
      await page.keyboard.press("m");
      await saysMuted(page);
    },
  },
  {
    name: "talk with its numbers",
    url,
    enter: async (page) => {
      await conversed(page);
      await page.click("#latency summary");
      await eventually("numbers", async () => /\d/.test((await page.textContent("#mouth-to-ear-short")) ?? ""));
    },
  },
  {
    name: "talk while a recorded voice asks",
    url,
    enter: async (page) => {
      await page.click(".chip");
      await says(page, /A recorded voice asks/);
    },
  },
  { name: "talk after the call", url, enter: ended },
  {
    name: "talk before a recording is lost",
    url,
    // As after ten seconds of talk, which states.test.js waits for.
    enter: async (page) => {
      await ended(page);
      await page.$eval("#unsaved", (it) => (it instanceof HTMLDialogElement ? it.showModal() : undefined));
      await page.waitForSelector("#unsaved[open]");
    },
  },
  {
    name: "talk behind another view",
    url,
    enter: async (page) => {
      await conversed(page);
      await page.click('#views a[data-view="transcribe"]');
      await page.waitForSelector("#ongoing:has-text('The call continues')");
      await page.click("#ongoing a");
      await inState(page, "live"); // the same call: one that ended would be over
      await page.click('#views a[data-view="read"]');
    },
  },
  { name: "keys", url, enter: (page) => page.keyboard.press("?") },
  {
    name: "settings",
    url,
    enter: async (page) => {
      await openSettings(page);
      await page.click(".microphone-test button");
      await page.waitForSelector("text=It hears you.");
      await page.click(".expert summary");
    },
  },
  { name: "about this server", url, enter: (page) => page.click("#about summary") },
  {
    name: "talk while the microphone opens",
    url,
    enter: async (page) => {
      await withoutMicrophone(page, "");
      await page.click("#talk");
      await inState(page, "opening");
      await page.waitForTimeout(3300); // the second sentence: where the browser asks
    },
  },
  { name: "talk without permission", url, enter: (page) => refused(page, "NotAllowedError") },
  { name: "talk without a microphone", url, enter: (page) => refused(page, "NotFoundError") },
  { name: "talk waiting for a place", url: () => full.url, enter: queued },
  {
    name: "talk with a server that stands still",
    url: () => full.url,
    enter: async (page) => {
      await call(page);
      await talkedFor(page, 1);
      full.freeze(true);
      await says(page, /Waiting for the server/);
    },
    leave: () => full.freeze(false),
  },
  {
    name: "talk with a server that is gone",
    url: () => full.url,
    enter: async (page) => {
      await call(page);
      await talkedFor(page, 1);
      await full.stop();
      await says(page, /Trying again/);
    },
  },
]);
