// A visitor opens the page, presses the button, and talks; what comes back is the voice that went in.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";

import {
  Server,
  bestEcho,
  call,
  clipPath,
  elapsedS,
  eventually,
  heardWhole,
  inState,
  numbers,
  openBrowser,
  openPage,
  python,
  readWav,
  rms,
  saveRecording,
  saysMuted,
  talkedFor,
} from "./lib.js";

/** Seconds of talk, of which any three are found again in the echo. */
const VOICE_S = 6;
/** Seconds of an echo in which it is found again. */
const WHOLE_S = 4;

/** @type {Server} */
let server;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  [server, browser] = await Promise.all([Server.start("--model", "echo", "--slots", "2"), openBrowser()]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

test("the echo of the microphone comes back, muted is silent, and the recording has both sides", async (t) => {
  const viewport = { width: 1120, height: 800 };
  const { page, complaints, close } = await openPage(browser, server.url, { viewport, colorScheme: "light" });
  const pressedMs = Date.now();
  await call(page);
  const isHeard = async () => Number(await page.$eval("#level-reply", (it) => getComputedStyle(it).getPropertyValue("--level"))) > 0.3;
  await eventually("the reply is heard", isHeard);
  t.diagnostic(`first sound ${Date.now() - pressedMs} ms after the button`);
  await talkedFor(page, VOICE_S);
  await page.click("#latency summary");
  await eventually("a round trip was timed", async () => Number.isFinite((await numbers(page))["roundTripMs"]));
  await heardWhole(page, WHOLE_S);
  const shown = await numbers(page);
  assert.ok((shown["mouthToEarMs"] ?? 0) > 80, `mouth to ear ${shown["mouthToEarMs"]}`);
  assert.ok((shown["stepMs"] ?? 0) > 0 && Number.isFinite(shown["jitterMs"]) && Number.isFinite(shown["roundTripMs"]));
  assert.match((await page.textContent('[data-name="path"]')) ?? "", /Opus/);

  await page.keyboard.press("m");
  await saysMuted(page);
  const mutedS = await elapsedS(page);
  await talkedFor(page, mutedS + 5);
  await page.click("#talk");
  await inState(page, "ended");
  const { name, sampleRate, channels, frames, sides } = await saveRecording(page);
  assert.match(name, /^antiphon-.*\.wav$/);
  assert.deepEqual([sampleRate, channels, sides.length], [24_000, 2, 2]);
  assert.ok(frames > (VOICE_S + 3) * 24_000, `${frames / 24_000} s`);
  const [mine, theirs] = /** @type {[Float32Array, Float32Array]} */ (sides);

  const clip = readWav(await readFile(clipPath())).sides[0];
  const spoken = mine.subarray(0, mutedS * 24_000);
  const asRecorded = bestEcho(spoken, loop(/** @type {Float32Array} */ (clip)), 30_000);
  assert.ok(asRecorded.correlation > 0.7, `the microphone is the clip: ${asRecorded.correlation}`);
  const echo = bestEcho(spoken, theirs, 3000);
  t.diagnostic(`echo: correlation ${echo.correlation.toFixed(3)} after ${echo.delayMs} ms; gaps ${shown["gaps"]}`);
  assert.ok(echo.correlation > 0.7, `the echo is what was said: ${echo.correlation}`);
  assert.ok(echo.delayMs >= 80, `after ${echo.delayMs} ms`);

  const silent = /** @param {Float32Array} side */ (side) => rms(side.subarray(-2 * 24_000));
  assert.equal(silent(mine), 0);
  assert.ok(silent(theirs) < 0.05 * rms(theirs.subarray(2 * 24_000, (VOICE_S - 1) * 24_000)), `muted echo ${silent(theirs)}`);
  assert.deepEqual(complaints, []);
  await close();
});

test("PCM when Opus is not wanted, beside a stock client on the same port", async () => {
  const { page, complaints, close } = await openPage(browser, server.url);
  await page.click("#settings-open");
  await page.selectOption('select:has(option[value="pcm_s16le"])', "pcm_s16le");
  await page.click("#settings button[value=close]");
  await call(page);
  const stock = await python("-m", "tests.web.stock_client", server.url);
  assert.ok(JSON.parse(stock.trim().split("\n").at(-1) ?? "").loud_samples > 12_000, stock);
  await page.click("#latency summary");
  await eventually("the path is told", async () => /PCM/.test((await page.textContent('[data-name="path"]')) ?? ""));
  await heardWhole(page, WHOLE_S);
  await page.click("#talk");
  await inState(page, "ended");
  const { sides } = await saveRecording(page);
  const echo = bestEcho(/** @type {Float32Array} */ (sides[0]), /** @type {Float32Array} */ (sides[1]), 3000);
  assert.ok(echo.correlation > 0.7, `${echo.correlation}`);
  assert.deepEqual(complaints, []);
  await close();
});

test("a browser without WebCodecs speaks PCM by itself, and one without a microphone lets a voice speak", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.addInitScript("delete globalThis.AudioEncoder; delete navigator.__proto__.mediaDevices;");
  await page.goto(server.url);
  await page.waitForSelector("body[data-ready]");
  await page.focus(".chip");
  await page.keyboard.press("Enter");
  await inState(page, "live");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "talk", "the focus is not lost with its button");
  await page.click("#latency summary");
  await eventually("the path is told", async () => /PCM/.test((await page.textContent('[data-name="path"]')) ?? ""));
  await heardWhole(page, WHOLE_S);
  await page.click("#talk");
  await inState(page, "ended");
  const { sides } = await saveRecording(page);
  const echo = bestEcho(/** @type {Float32Array} */ (sides[0]), /** @type {Float32Array} */ (sides[1]), 3000);
  assert.ok(echo.correlation > 0.7, `${echo.correlation}`);
  await context.close();
});

/** The clip twice: the microphone may have begun in its middle. @param {Float32Array} clip */
function loop(clip) {
  const twice = new Float32Array(2 * clip.length);
  twice.set(clip);
  twice.set(clip, clip.length);
  return twice;
}
