// Times the page in calls of its own: one JSON line for each press of the button, and one for each question.
// Usage: node lab/tools/page_speed.js URL ROUNDS, with the surroundings of tests/support/node.py.
import { inState, numbers, openBrowser, openPage } from "../../tests/web/browser/lib.js";

const [url = "", rounds = "5"] = process.argv.slice(2);
const DRAWN_MS = 8000;

/** In the page, before its own scripts: note when a call is asked for, and when its first reply comes in. */
function watch() {
  const seen = { pressMs: NaN, replyMs: NaN };
  addEventListener("click", () => Object.assign(seen, { pressMs: performance.now(), replyMs: NaN }), true);
  const Plain = WebSocket;
  window.WebSocket = class extends Plain {
    /** @param {string | URL} address @param {string | string[]} [protocols] */
    constructor(address, protocols) {
      super(address, protocols);
      this.addEventListener("message", ({ data }) => {
        const isAudio = data instanceof ArrayBuffer && [0x01, 0x11].includes(new Uint8Array(data)[0] ?? 0);
        if (isAudio && Number.isNaN(seen.replyMs)) seen.replyMs = performance.now();
      });
    }
  };
  Object.assign(window, { seen });
}

/** How many pictures a second the page draws, and the longest wait between two, in ms. @param {number} lastsMs */
function drawn(lastsMs) {
  return new Promise((resolve) => {
    const begin = performance.now();
    let [count, last, longest] = [0, begin, 0];
    const next = () => {
      const now = performance.now();
      [count, last, longest] = [count + 1, now, Math.max(longest, now - last)];
      if (now - begin < lastsMs) requestAnimationFrame(next);
      else resolve({ perS: (1000 * count) / (now - begin), longestMs: longest });
    };
    requestAnimationFrame(next);
  });
}

const browser = await openBrowser();
try {
  const { page } = await openPage(browser, url, { reducedMotion: "no-preference" });
  await page.addInitScript(watch);
  const questions = await page.locator("#chips .chip").allTextContents();
  for (let round = 0; round < Number(rounds); round++) {
    const button = round % 2 ? `.chip:text-is("${questions[round % questions.length]}")` : "#talk";
    await page.reload();
    await page.waitForSelector("body[data-ready]");
    await page.click(button);
    await page.waitForFunction(() => !Number.isNaN(/** @type {any} */ (window).seen.replyMs));
    const soundMs = await page.evaluate(() => /** @type {any} */ (window).seen).then((seen) => seen.replyMs - seen.pressMs);
    const { perS, longestMs } = /** @type {any} */ (await page.evaluate(drawn, DRAWN_MS));
    const { mouthToEar } = await numbers(page);
    process.stdout.write(`${JSON.stringify({ pressed: round % 2 ? "question" : "button", soundMs, perS, longestMs, mouthToEar })}\n`);
    await page.click("#talk");
    await inState(page, "ended");
  }
} finally {
  await browser.close();
}
