// What a visitor is told when something stands still, changes or would be lost; and questions without a microphone.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { call, eventually, freePort, inState, openBrowser, openPage, says, Server, talkedFor } from "./lib.js";

/** @type {import("playwright-core").Browser} */
let browser;
/** Two servers that tests leave as they were, with a row each. @type {Server} */
let talker;
/** @type {Server} */
let silent;

before(async () => {
  const row = ["--slots", "1"];
  [talker, silent, browser] = await Promise.all([
    Server.start("--model", "tiny", ...row),
    Server.start("--backend", "null", ...row),
    openBrowser(),
  ]);
});
after(async () => {
  await browser?.close();
  await talker?.stop();
  await silent?.stop();
});

/** @param {import("playwright-core").Page} page */
const transcript = async (page) => (await page.textContent("#transcript")) ?? "";

test("three questions without a microphone, one at a time, and their answers with names", async (t) => {
  const { page, complaints, close } = await openPage(browser, talker.url);
  assert.match((await page.textContent("#model-line")) ?? "", /^tiny.*A small talker/s);
  const pressedMs = Date.now();
  let right = 0;
  for (const [question, answer] of /** @type {[string, RegExp][]} */ ([
    ["What is your name?", /my name is robin/],
    ["What colour is snow?", /snow is white/],
    ["What does a cow say?", /a cow says moo/],
  ])) {
    await page.click(`text=${question}`);
    const others = page.locator(`.chip:not(:text("${question}"))`).first();
    await eventually("one question at a time", async () => (await others.getAttribute("aria-disabled")) === "true");
    const answered = async () => ((await transcript(page)).split(question)[1] ?? "").trim().split(/\s+/).length >= 3;
    await eventually(`an answer to ${question}`, answered, () => transcript(page));
    if (question.includes("name")) t.diagnostic(`an answer's first words ${Date.now() - pressedMs} ms after the press`);
    await page.waitForSelector(`.chip[aria-disabled="false"]:text("${question}")`);
    await page.waitForTimeout(1500); // it is still answering: a person would not interrupt
    right += Number(answer.test(await transcript(page)));
  }
  t.diagnostic(`${right} of 3 are right: the model draws its words, and may take another question's answer`);
  const names = await page.$$eval("#transcript .who", (all) => all.map((it) => it.textContent));
  assert.deepEqual([...new Set(names)].sort(), ["You", "tiny"]);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#transcript-save")]);
  assert.match(download.suggestedFilename(), /\.txt$/);
  await page.click("#talk");
  await inState(page, "ended");
  assert.deepEqual(complaints, []);
  await close();
});

test("a server that stands still is shown before the connection is given up", async (t) => {
  t.after(() => silent.freeze(false));
  const { page, close } = await openPage(browser, silent.url);
  await call(page);
  await talkedFor(page, 2);
  await page.evaluate(() => {
    const status = document.getElementById("status");
    new MutationObserver(() => {
      if (/Waiting for the server/.test(status?.textContent ?? "")) document.body.dataset["stalledMs"] ??= String(Date.now());
    }).observe(/** @type {Node} */ (status), { childList: true, characterData: true, subtree: true });
  });
  const frozenMs = Date.now();
  silent.freeze(true);
  await says(page, /Waiting for the server/);
  const shownMs = Number(await page.getAttribute("body", "data-stalled-ms")) - frozenMs;
  silent.freeze(false);
  t.diagnostic(`shown after ${shownMs} ms`);
  assert.ok(shownMs < 20_000, `${shownMs} ms`); // 700 ms and a look every 200; the rest is for a busy machine
  await says(page, /It is|You are back|behind|slow/);
  await eventually("a verdict of its own time", async () => (await page.textContent("#quality")) !== "No answer");
  await close();
});

test("start again after the server came back with another model", async (t) => {
  const port = await freePort();
  const first = new Server(port, ["--model", "tiny", "--backend", "null", "--slots", "1"]);
  await first.start();
  t.after(() => first.stop());
  const { page, close } = await openPage(browser, first.url);
  await call(page);
  await page.click("#talk");
  await inState(page, "ended");
  await first.stop();
  const second = new Server(port, ["--model", "echo", "--backend", "null", "--slots", "1"]);
  await second.start();
  t.after(() => second.stop());
  await call(page);
  assert.equal(await page.textContent("#model-name"), "echo");
  await close();
});

test("a recording is asked about before the next call replaces it, and saved as Opus or WAV", async (t) => {
  const { page, close } = await openPage(browser, silent.url);
  await call(page);
  await talkedFor(page, 11);
  await page.click("#talk");
  await inState(page, "ended");
  await says(page, /The call is over\. 0:1\d\sof\stalk/);
  const heardS = () => page.$eval("#playback", (it) => (it instanceof HTMLAudioElement ? it.duration : NaN));
  await eventually("it can be heard again", async () => (await heardS()) > 10, heardS);
  await page.click("#talk");
  await page.waitForSelector("#unsaved[open]");
  await page.click('#unsaved button[value=""]');
  assert.equal(await page.getAttribute("body", "data-state"), "ended");
  const sizes = [];
  for (const button of ["#save", "#save-opus"]) {
    const [download] = await Promise.all([page.waitForEvent("download"), page.click(button)]);
    const { size } = await (await import("node:fs/promises")).stat(await download.path());
    sizes.push(size);
    t.diagnostic(`${download.suggestedFilename()}: ${size} bytes`);
  }
  assert.ok(/** @type {number} */ (sizes[1]) * 5 < /** @type {number} */ (sizes[0]), String(sizes));
  await page.click("#talk"); // saved: nothing to ask
  await inState(page, "live");
  await close();
});

test("a double click on the button begins a call", async () => {
  const { page, close } = await openPage(browser, silent.url);
  await page.dblclick("#talk");
  await talkedFor(page, 1);
  await close();
});

test("a notice of the server's leaving stands above the page, not in the transcript", async (t) => {
  const server = await Server.start("--model", "tiny", "--slots", "1", "--drain-timeout-s", "120");
  t.after(() => server.stop());
  const { page, close } = await openPage(browser, server.url);
  await call(page, ".chip");
  await eventually("an answer", async () => /tiny\s*\w+ \w+ \w+/.test(await transcript(page)), () => transcript(page));
  void server.stop("SIGTERM");
  await page.waitForSelector("#notice:visible");
  assert.match((await page.textContent("#notice")) ?? "", /restarts soon: this call may continue for/);
  assert.doesNotMatch(await transcript(page), /restarts/);
  await page.click("#talk");
  await close();
});

test("after a call its summary, recording and files are in sight at every size", async () => {
  const { page, close } = await openPage(browser, talker.url);
  await call(page, ".chip");
  await eventually("an answer", async () => /tiny\s*\w+ \w+/.test(await transcript(page)), () => transcript(page));
  await page.click("#talk");
  await inState(page, "ended");
  for (const viewport of [{ width: 1280, height: 800 }, { width: 390, height: 844 }, { width: 844, height: 390 }]) {
    await page.setViewportSize(viewport);
    for (const id of ["#help", "#playback", "#save", "#save-opus", "#talk"]) {
      const box = await page.locator(id).boundingBox();
      assert.ok(box && box.y >= 0 && box.y + box.height <= viewport.height, `${viewport.height}: ${id} ends at ${box && box.y + box.height}`);
      assert.ok(id === "#help" || box.height >= 44, `${id} is ${box.height} high`);
    }
  }
  await close();
});

test("questions beyond the edge have a button that shows them, and wrap where there is room", async () => {
  const { page, close } = await openPage(browser, talker.url, { viewport: { width: 390, height: 844 } });
  const last = page.locator("#chips .chip").last();
  const ends = async () => (await last.boundingBox())?.x ?? NaN;
  assert.equal(await page.isVisible("#chips-more"), false, "before a call every question is in sight");
  await call(page, ".chip");
  for (let press = 0; press < 6 && (await ends()) > 250; press++) await page.click("#chips-more");
  assert.ok((await ends()) < 250, `${await ends()}`);
  assert.match((await page.getAttribute("#chips-more", "class")) ?? "", /is-end/);
  await page.click("#chips-more"); // back to the first
  await eventually("the first question", async () => ((await page.locator("#chips .chip").first().boundingBox())?.x ?? NaN) >= 0);
  await page.setViewportSize({ width: 1280, height: 800 });
  await eventually("the button is gone", async () => !(await page.isVisible("#chips-more")));
  await close();
});

test("on a phone's side the buttons are in sight, and colours of the system's choice have borders", async () => {
  const { page, close } = await openPage(browser, talker.url, { viewport: { width: 844, height: 390 }, forcedColors: "active" });
  for (const state of ["idle", "live"]) {
    if (state === "live") await call(page, ".chip");
    const box = await page.locator("#talk").boundingBox();
    assert.ok(box && box.y + box.height < 390, `${state}: the button ends at ${box && box.y + box.height}`);
    const border = await page.$eval("#talk", (it) => getComputedStyle(it).borderTopWidth);
    assert.equal(border, "1px");
  }
  await close();
});
