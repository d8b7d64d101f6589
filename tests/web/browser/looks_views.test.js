// Every state of the views that write down and read aloud, and of what is asked before them, in every look.
import { createHash } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before } from "node:test";

import { eventually, openBrowser, says, Server } from "./lib.js";
import { testLooks } from "./looks.js";

const QUESTION = new URL("../../../clients/antiphon_client/clips/question-colour.ogg", import.meta.url).pathname;
const LONG = "the sky is blue. my name is robin. a cow says moo. ".repeat(12);

/** @type {string} */
let folder;
/** @type {Server} */
let server;
/** @type {Server} */
let locked;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "antiphon-looks-"));
  await writeFile(join(folder, "keys"), `alice:${createHash("sha256").update("right").digest("hex")}\n`);
  [server, locked, browser] = await Promise.all([
    Server.start("--model", "tiny-stt", "--model", "tiny-tts", "--slots", "2"),
    Server.start("--backend", "null", "--api-keys", join(folder, "keys")),
    openBrowser(),
  ]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
  await locked?.stop();
  await rm(folder, { recursive: true });
});

/** @param {string} view */
const at = (view) => () => `${server.url}/#${view}`;

testLooks(() => browser, [
  { name: "a key is asked for", url: () => locked.url, enter: (page) => says(page, /access key/) },
  {
    name: "a key is refused",
    url: () => locked.url,
    enter: async (page) => {
      await page.fill("#key", "wrong");
      await page.press("#key", "Enter");
      await page.waitForSelector("text=This key is not accepted.");
    },
  },
  { name: "transcribe before it", url: at("transcribe"), enter: async () => {} },
  {
    name: "transcribe while it listens",
    url: at("transcribe"),
    enter: async (page) => {
      await page.click("#listen");
      await eventually("words", async () => ((await page.textContent("#words")) ?? "").length > 20);
    },
  },
  {
    name: "transcribe a recording",
    url: at("transcribe"),
    enter: async (page) => {
      await page.setInputFiles("#file", QUESTION);
      await says(page, /Written down\./);
    },
  },
  {
    name: "transcribe what is no recording",
    url: at("transcribe"),
    enter: async (page) => {
      await page.setInputFiles("#file", { name: "no.wav", mimeType: "audio/wav", buffer: Buffer.from("no sound") });
      await says(page, /This did not work\./);
    },
  },
  { name: "read before it", url: at("read"), enter: async () => {} },
  {
    name: "read to show a voice",
    url: at("read"),
    enter: async (page) => {
      await page.selectOption("#voice", "will");
      await page.click("#preview");
      await says(page, /This is Will/);
    },
  },
  {
    name: "read while it speaks",
    url: at("read"),
    enter: async (page) => {
      await page.fill("#read-text", LONG);
      await page.click("#speak");
      await eventually("a word is marked", () => page.evaluate(() => document.querySelector("#spoken .is-spoken") !== null));
    },
  },
  {
    name: "read to the end",
    url: at("read"),
    enter: async (page) => {
      await page.fill("#read-text", "the sky is blue");
      await page.click("#speak");
      await says(page, /Read to the end\./);
    },
  },
  {
    name: "read nothing",
    url: at("read"),
    enter: async (page) => {
      await page.fill("#read-text", "");
      await page.click("#speak");
      await says(page, /nothing to read/);
    },
  },
]);
