// "About this server": the lines that call it with stock clients and curl, for this address and its models, without the key.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFile, mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { after, before, test } from "node:test";

import { clipPath, openBrowser, openPage, Server } from "./lib.js";

const KEY = "key-of-this-test";

/** @type {import("playwright-core").Browser} */
let browser;

before(async () => void (browser = await openBrowser()));
after(() => browser?.close());

/** @param {import("playwright-core").Page} page */
async function shownLines(page) {
  await page.click("#about summary");
  await page.waitForSelector("#client-lines pre", { state: "visible" });
  return page.$$eval("#client-lines pre", (all) => all.map((it) => it.textContent ?? ""));
}

test("the lines name this server and its model, and can be copied", async (t) => {
  const server = await Server.start("--model", "tiny-stt", "--model", "echo");
  t.after(() => server.stop());
  const { page, complaints, close } = await openPage(browser, server.url, { permissions: ["clipboard-read", "clipboard-write"] });
  const lines = await shownLines(page);
  assert.equal(lines.length, 4);
  assert.ok(lines[3]?.includes(`127.0.0.1:${server.port}/v1/audio/transcriptions`));
  for (const text of lines.slice(0, 3)) {
    assert.ok(text.includes(`127.0.0.1:${server.port}/v1`), text);
    assert.ok(text.includes('"echo"'), "the first model that Live reaches");
    assert.ok(text.includes('api_key="any key"'), text);
  }
  assert.ok(lines[1]?.includes(`"ws://127.0.0.1:${server.port}/v1/live/sessions"`));
  await page.click('button[aria-label="Copy the lines for LiveKit"]');
  await page.waitForSelector("#client-lines >> text=Copied");
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), lines[2]);
  assert.deepEqual(complaints, []);
  await close();
});

test("the key of the page is in no line", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "antiphon-clients-"));
  t.after(() => rm(folder, { recursive: true }));
  const keys = join(folder, "keys");
  await writeFile(keys, `visitor:${createHash("sha256").update(KEY).digest("hex")}\n`);
  const server = await Server.start("--model", "echo", "--backend", "null", "--api-keys", keys);
  t.after(() => server.stop());
  const { page, close } = await openPage(browser, server.url);
  await page.fill("#key", KEY);
  await page.press("#key", "Enter");
  await page.waitForSelector("#talk", { state: "visible" });
  for (const text of await shownLines(page)) assert.ok(text.includes('api_key="your key"'), text);
  assert.ok(!(await page.content()).includes(KEY), "nor anywhere else in the page's markup");
  await close();
});

test("a server without a model that talks shows how curl calls it, and curl does", async (t) => {
  const server = await Server.start("--model", "tiny-tts", "--model", "tiny-stt");
  t.after(() => server.stop());
  const { page, close } = await openPage(browser, server.url);
  const [write, read] = await shownLines(page);
  const folder = await mkdtemp(join(tmpdir(), "antiphon-curl-"));
  t.after(() => rm(folder, { recursive: true }));
  await copyFile(clipPath(), join(folder, "speech.wav"));
  const shell = promisify(execFile);
  const { stdout } = await shell("sh", ["-c", write ?? ""], { cwd: folder });
  assert.equal(typeof JSON.parse(stdout).text, "string", stdout);
  await shell("sh", ["-c", read ?? ""], { cwd: folder });
  assert.ok((await stat(join(folder, "out.mp3"))).size > 2000);
  await close();
});
