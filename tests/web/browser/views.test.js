// What a visitor sees and can reach: desktop and phone, light and dark, with the keyboard, and in trouble.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { IMAGES, Server, call, eventually, inState, openBrowser, openPage, openSettings, picture, says, saysMuted } from "./lib.js";

const DESKTOP = { width: 1120, height: 800 };
const PHONE = { width: 390, height: 800 };
/** In the documents' pictures the voices of the last seconds are seen. */
const MOTION = IMAGES ? { reducedMotion: /** @type {const} */ ("no-preference") } : {};

/** @type {Server} */
let server;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  // In the documents' pictures the caller's words are written down too, and all three views are there.
  const models = ["--model", "tiny", ...(IMAGES ? ["--model", "tiny-stt", "--model", "tiny-tts"] : [])];
  const options = [...models, "--slots", "2", "--allow-host", "voice.test"];
  const more = ["--host-resolver-rules=MAP voice.test 127.0.0.1"];
  [server, browser] = await Promise.all([Server.start(...options), openBrowser(...more)]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

/** Nothing sticks out, and what is to be touched is large enough. @param {import("playwright-core").Page} page */
async function fits(page) {
  const width = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok((width[0] ?? 0) <= (width[1] ?? 0), `the page is ${width[0]} wide, the window ${width[1]}`);
  for (const id of ["#talk", "#mute", "#save", ".chip"]) {
    const box = await page.locator(id).first().boundingBox();
    if (!box) continue;
    assert.ok(box.width >= 44 && box.height >= 44, `${id} is ${box.width} x ${box.height}`);
    assert.ok(box.x >= 0 && box.x + box.width <= (width[1] ?? 0), `${id} is outside`);
  }
}

/** Three questions and their answers, for the documents. @param {import("playwright-core").Page} page */
async function conversed(page) {
  for (const question of ["What is your name?", "What is five plus four?", "What does a cow say?"]) {
    const before = (await page.textContent("#transcript")) ?? "";
    await page.click(`.chip:text-is("${question}")`);
    await eventually("an answer", async () => /\w+ \w+ \w+ \w+$/.test(((await page.textContent("#transcript")) ?? "").slice(before.length + question.length)));
    if (question.includes("cow")) return page.$eval("#chips", (it) => it.scrollTo({ left: 0, behavior: "instant" }));
    await page.waitForTimeout(2500);
  }
}

/** The views of speech, for the documents. @param {import("playwright-core").Page} page */
async function otherViews(page) {
  await page.click('#views a[data-view="transcribe"]');
  await page.click("#samples .chip");
  await says(page, /Written down/);
  await picture(page, "web-transcribe");
  await page.click('#views a[data-view="read"]');
  await page.click("#speak");
  await page.waitForSelector("#spoken .is-spoken");
  await page.waitForTimeout(2000);
  await picture(page, "web-read");
}

test("a conversation with words, on a desktop in the light and on a phone in the dark", async () => {
  const desktop = await openPage(browser, server.url, { viewport: DESKTOP, colorScheme: "light", ...MOTION });
  await fits(desktop.page);
  if (IMAGES) await conversed(desktop.page);
  else await call(desktop.page);
  await eventually("answers", async () => ((await desktop.page.textContent("#transcript")) ?? "").length > 30);
  await eventually("turns are not read out", async () => (await desktop.page.getAttribute("#status", "aria-live")) === "off");
  await fits(desktop.page);
  await desktop.page.click("#latency summary");
  await desktop.page.locator("#numbers").scrollIntoViewIfNeeded();
  await eventually("numbers", async () => /\d/.test((await desktop.page.textContent("#mouth-to-ear-short")) ?? ""));
  await desktop.page.click("#talk");
  await inState(desktop.page, "ended");
  if (IMAGES) await otherViews(desktop.page);
  assert.deepEqual(desktop.complaints, []);
  await desktop.close();

  const options = { viewport: PHONE, colorScheme: /** @type {const} */ ("dark"), hasTouch: true, isMobile: true };
  const phone = await openPage(browser, server.url, { ...options, ...MOTION, deviceScaleFactor: 2 });
  await fits(phone.page);
  if (IMAGES) await conversed(phone.page);
  else await call(phone.page);
  await picture(phone.page, "web-phone");
  await fits(phone.page);
  const button = await phone.page.locator("#talk").boundingBox();
  assert.ok(button && button.y + button.height < PHONE.height, "the button is on the first screen");
  await openSettings(phone.page);
  await fits(phone.page);
  await phone.page.click("#settings button[value=close]");
  assert.deepEqual(phone.complaints, []);
  await phone.close();
});

test("the keyboard reaches everything, and every control has a name", async () => {
  const { page, close } = await openPage(browser, server.url, { viewport: DESKTOP });
  const focused = () => page.evaluate(() => document.activeElement?.id || document.activeElement?.className);
  const order = [];
  for (let step = 0; step < (IMAGES ? 6 : 3); step++) {
    await page.keyboard.press("Tab");
    order.push(await focused());
  }
  assert.deepEqual(order.slice(-3), ["settings-open", "talk", "chip"]); // links to the other views come first
  await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Enter");
  await inState(page, "live");
  await page.keyboard.press("m");
  await saysMuted(page);
  await page.keyboard.press("m");
  await openSettings(page);
  const nameless = await page.$$eval("button, select, input, textarea, [role=meter], [role=log], canvas:not([aria-hidden])", (all) =>
    all
      .filter((it) => it instanceof HTMLElement && it.offsetParent !== null)
      .filter((it) => !(it.textContent?.trim() || it.getAttribute("aria-label") || it.closest("label")?.textContent?.trim()))
      .map((it) => it.outerHTML),
  );
  assert.deepEqual(nameless, []);
  await page.keyboard.press("Escape");
  assert.equal(await page.isVisible("#settings"), false);
  await page.focus("#talk");
  await page.keyboard.press("Space");
  await inState(page, "ended");
  await eventually("the end is", async () => (await page.getAttribute("#status", "aria-live")) === "polite");
  await close();
});

test("every parameter is there with the server's default, is heard at once, and is remembered", async () => {
  const { page, complaints, close } = await openPage(browser, server.url, { viewport: DESKTOP });
  const { models } = await (await fetch(`${server.url}/api/models`)).json();
  await openSettings(page);
  const shown = await page.$$eval("#settings input[name]:not([name=key])", (all) =>
    all.map((it) => (it instanceof HTMLInputElement ? [it.name, it.value === "" ? null : Number(it.value)] : [])),
  );
  assert.deepEqual(Object.fromEntries(shown), models[0].parameters);
  await page.click("#settings button[value=close]");
  await call(page);
  const told = page.waitForFunction(() => document.querySelector(".is-changed") !== null);
  await openSettings(page);
  await page.click(".expert summary");
  await page.fill('#settings input[name="text_topk"]', "120");
  await told;
  await page.reload();
  await page.waitForSelector("body[data-ready]");
  await openSettings(page);
  assert.equal(await page.inputValue('#settings input[name="text_topk"]'), "120");
  await page.click("#settings-reset");
  await eventually("the default is back", async () => (await page.inputValue('#settings input[name="text_topk"]')) === "25");
  assert.deepEqual(complaints, []);
  await close();
});

test("trouble is told in words that help", async () => {
  const insecure = await openPage(browser, `http://voice.test:${server.port}`);
  await insecure.page.click("#talk");
  await says(insecure.page, /A microphone needs HTTPS\. .*https:\/\/voice\.test/);
  await insecure.close();

  const blocked = await openPage(browser, server.url, { viewport: PHONE });
  await blocked.page.evaluate(() => {
    navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("no", "NotAllowedError"));
  });
  await blocked.page.click("#talk");
  await says(blocked.page, /The microphone is blocked\. To allow it/);
  await fits(blocked.page);
  await blocked.close();

  const refused = await openPage(browser, server.url);
  await refused.page.evaluate(() => localStorage.setItem("antiphon.settings", JSON.stringify({ values: { text_topk: 3 } })));
  await refused.page.reload();
  await refused.page.waitForSelector("body[data-ready]");
  await refused.page.click("#talk");
  await says(refused.page, /This did not work\. Text_topk is 3, 10 to 500 are allowed/);
  await refused.close();
});
