// Speaks with an agent by the front end of Kyutai's Unmute; one JSON line: events that came, words shown, sound.
// Usage: node lab/tools/unmute_page.js URL, with the surroundings of tests/support/node.py.
import { PATIENCE_MS, openBrowser } from "../../tests/web/browser/lib.js";

const [url = ""] = process.argv.slice(2);
const WANTED = ["response.audio.done", "conversation.item.input_audio_transcription.delta"];

/** In the page, before its own scripts: no question about cookies, and note the sound that it is to play. */
function watch() {
  localStorage.setItem("cookieConsentV2", "false");
  const heard = { samples: 0, peak: 0 };
  const post = MessagePort.prototype.postMessage;
  MessagePort.prototype.postMessage = function (/** @type {any} */ message, /** @type {any[]} */ ...more) {
    if (message?.type === "audio") {
      heard.samples += message.frame.length;
      heard.peak = message.frame.reduce((/** @type {number} */ top, /** @type {number} */ it) => Math.max(top, Math.abs(it)), heard.peak);
    }
    return post.call(this, message, ...more);
  };
  Object.assign(window, { heard });
}

const browser = await openBrowser();
try {
  const page = await browser.newPage();
  /** @type {Record<string, number>} */
  const events = {};
  /** @type {string[]} */
  const warnings = [];
  page.on("console", (it) => ["warning", "error"].includes(it.type()) && warnings.push(it.text()));
  page.on("pageerror", (error) => warnings.push(String(error)));
  page.on("websocket", (socket) =>
    socket.on("framereceived", ({ payload }) => {
      const { type } = JSON.parse(String(payload));
      events[type] = (events[type] ?? 0) + 1;
    }),
  );
  await page.addInitScript(watch);
  await page.goto(url);
  await page.locator("button", { hasText: /^connect$/ }).click({ timeout: PATIENCE_MS });
  await page.keyboard.press("s");
  const end = Date.now() + PATIENCE_MS;
  // The agent speaks first, and answers the question of the microphone.
  while (!WANTED.every((it) => events[it]) || (events["response.audio.done"] ?? 0) < 2) {
    if (Date.now() > end) throw new Error(`came so far: ${JSON.stringify({ events, warnings })}`);
    await page.waitForTimeout(200);
  }
  const lines = await page.locator(".line").allTextContents();
  const heard = await page.evaluate(() => /** @type {any} */ (window).heard);
  await page.locator("button", { hasText: /^disconnect$/ }).click();
  await page.locator("button", { hasText: /^connect$/ }).waitFor();
  process.stdout.write(`${JSON.stringify({ events, lines, heard, warnings })}\n`);
} finally {
  await browser.close();
}
