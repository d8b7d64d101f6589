// A full server lets its visitors wait and then lets them in; a server that goes away is come back to.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { call, eventually, inState, openBrowser, openPage, says, Server, startAgain, talkedFor } from "./lib.js";

/** @type {import("playwright-core").Browser} */
let browser;
/** Of one row. @type {Server} */
let single;

before(async () => {
  [single, browser] = await Promise.all([Server.start("--backend", "null", "--slots", "1"), openBrowser()]);
});
after(async () => {
  await browser?.close();
  await single?.stop();
});

test("the queue is shown, place by place, and then a visitor is let in", async () => {
  const first = await openPage(browser, single.url);
  await call(first.page);
  const second = await openPage(browser, single.url);
  await second.page.click("#talk");
  await says(second.page, /Waiting: you are next\./);
  const third = await openPage(browser, single.url);
  await third.page.click("#talk");
  await says(third.page, /Waiting: 1 ahead of you\./);
  await first.page.click("#talk");
  await inState(second.page, "live");
  await says(third.page, /Waiting: you are next\./);
  await third.page.click("#talk");
  await says(third.page, /The call is over\./);
  await talkedFor(second.page, 2);
  for (const { complaints, close } of [first, second, third]) {
    assert.deepEqual(complaints, []);
    await close();
  }
});

test("a full server without a queue is tried again when it said", async (t) => {
  const server = await Server.start("--backend", "null", "--slots", "1", "--max-queue", "0", "--tune", "retry_after_max_s=2");
  t.after(() => server.stop());
  const first = await openPage(browser, server.url);
  await call(first.page);
  const second = await openPage(browser, server.url);
  await second.page.click("#talk");
  await says(second.page, /The server is full\. Every place is taken\. Trying again/);
  await first.close(); // gone without a word: the server notices
  await inState(second.page, "live");
  await second.close();
});

test("a server that restarts is come back to, and says that the conversation is a new one", async () => {
  const { page, close } = await openPage(browser, single.url);
  await call(page);
  await talkedFor(page, 2);
  await single.stop();
  await says(page, /The (connection was lost|server cannot be reached)\. .*Trying again/);
  await single.start();
  await inState(page, "live");
  await says(page, /You are back\..*new conversation/);
  assert.match((await page.textContent("#transcript")) ?? "", /This is a new conversation/);
  const loudness = () => page.$eval("#level-reply", (it) => Number(getComputedStyle(it).getPropertyValue("--level")));
  await eventually("the reply is heard again", async () => (await loudness()) > 0.3, loudness);

  await page.click("#talk");
  await inState(page, "ended");
  await single.stop("SIGTERM");
  await startAgain(page);
  await says(page, /The server cannot be reached\./);
  await page.click("#talk");
  await says(page, /The call is over\./);
  await close();
});

test("a server that falls silent without a word is noticed, and come back to", async (t) => {
  const server = await Server.start("--backend", "null", "--slots", "2");
  t.after(() => server.stop());
  const { page, close } = await openPage(browser, server.url);
  await call(page);
  await talkedFor(page, 2);
  server.freeze(true);
  await says(page, /The (connection was lost|server cannot be reached)\. Trying again/);
  server.freeze(false);
  await inState(page, "live");
  await says(page, /You are back\./);
  await close();
});
