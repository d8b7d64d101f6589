// A server with several models and a key: the page offers what one can talk to, and asks for the key.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { call, inState, openBrowser, openPage, openSettings, says, Server, talkedFor } from "./lib.js";

const KEY = "key-of-this-test";

/** @type {import("playwright-core").Browser} */
let browser;

before(async () => void (browser = await openBrowser()));
after(() => browser?.close());

test("a key is asked for, and then the model is chosen", async (t) => {
  const keys = join(await mkdtemp(join(tmpdir(), "antiphon-")), "keys");
  await writeFile(keys, `visitor:${createHash("sha256").update(KEY).digest("hex")}\n`);
  const models = ["--model", "echo", "--model", "tiny"];
  const server = await Server.start(...models, "--backend", "null", "--slots", "1", "--api-keys", keys);
  t.after(() => server.stop());
  const { page, close } = await openPage(browser, server.url);
  await says(page, /This server asks for an access key/);
  assert.equal(await page.isVisible("#talk"), false, "it is asked for before the call");
  await page.fill("#key", "wrong");
  await page.press("#key", "Enter");
  await page.waitForSelector("text=This key is not accepted.");
  await page.fill("#key", KEY);
  await page.press("#key", "Enter");
  await page.waitForSelector("#talk", { state: "visible" });
  assert.equal(await page.isVisible("#key-form"), false);
  await page.click("#settings-open");
  await page.waitForSelector("#model");
  assert.deepEqual(await page.$$eval("#model option", (all) => all.map((it) => it.getAttribute("value"))), ["echo", "tiny"]);
  await page.selectOption("#model", "tiny");
  assert.equal(await page.textContent("#reply-name"), "Reply");
  await page.focus("#model");
  await page.selectOption("#model", "echo");
  await page.selectOption("#model", "tiny");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "model", "a change leaves the focus where it was");
  await page.click("#settings button[value=close]");
  await call(page);
  await talkedFor(page, 2);
  assert.ok(((await page.textContent("#transcript")) ?? "").length > 3, "the chosen model has words");
  await page.click("#talk");
  await inState(page, "ended");
  await close();
});

test("a voice is chosen beside what it speaks or in the settings, and kept", async (t) => {
  const models = ["--model", "tiny-stt", "--model", "tiny-tts", "--agent", "assistant", "--llm", "http://127.0.0.1:9/v1"];
  const server = await Server.start(...models, "--backend", "null", "--slots", "1");
  t.after(() => server.stop());
  const { page, complaints, close } = await openPage(browser, server.url);
  for (const [view, beside, field] of /** @type {const} */ ([["read", "#voice", "Voice that reads"], ["talk", "#talk-voice", "Its voice"]])) {
    const inSettings = `#settings select[name="${field}"]`;
    await page.click(`#views a[data-view="${view}"]`);
    await page.selectOption(beside, "will");
    await openSettings(page);
    assert.equal(await page.inputValue(inSettings), "will");
    await page.selectOption(inSettings, "vera");
    assert.equal(await page.inputValue(beside), "vera");
    await page.selectOption(inSettings, "will");
    await page.click("#settings button[value=close]");
    await page.reload();
    await page.waitForSelector("body[data-ready]");
    assert.equal(await page.inputValue(beside), "will");
  }
  const opened = page.waitForEvent("websocket", (socket) => socket.url().includes("/api/chat"));
  await page.click("#talk");
  assert.equal(new URL((await opened).url()).searchParams.get("voice_prompt"), "will");
  assert.deepEqual(complaints, []);
  await close();
});
