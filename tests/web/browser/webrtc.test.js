// Chromium calls by WebRTC: from the page, where that is chosen, and from examples/webrtc.html with an origin of its own.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { after, before, test } from "node:test";

import { bestEcho, call, eventually, heardWhole, inState, numbers, openBrowser, openPage, openSettings, saveRecording, says, Server, talkedFor } from "./lib.js";

const TRAVELS = '#settings select[name="Sound travels as"]';

/** @type {import("playwright-core").Browser} */
let browser;

before(async () => void (browser = await openBrowser()));
after(() => browser?.close());

test("a page of one's own holds a call by WebRTC", async (t) => {
  const file = await readFile(new URL("../../../examples/webrtc.html", import.meta.url));
  const host = createServer((_, answer) => answer.setHeader("content-type", "text/html").end(file));
  await new Promise((resolve) => host.listen(0, "127.0.0.1", () => resolve(null)));
  t.after(() => host.close());
  const address = host.address();
  const origin = `http://127.0.0.1:${typeof address === "object" && address ? address.port : 0}`;
  const server = await Server.start("--backend", "null", "--slots", "1", "--webrtc", "1", "--allow-origin", origin);
  t.after(() => server.stop());
  const page = await browser.newPage();
  /** @type {string[]} */
  const faults = [];
  page.on("pageerror", (error) => faults.push(error.message));
  await page.addInitScript(() => {
    const Own = globalThis.RTCPeerConnection;
    globalThis.RTCPeerConnection = class extends Own {
      /** @param {RTCConfiguration} [configuration] */
      constructor(configuration) {
        super(configuration);
        Object.assign(globalThis, { connection: this });
      }
    };
  });
  await page.goto(`${origin}/?server=${server.url}`);
  await page.click("#talk");
  await eventually("the answer is heard", () =>
    page.evaluate(async () => {
      const { connection } = /** @type {{ connection?: RTCPeerConnection }} */ (/** @type {unknown} */ (globalThis));
      const reports = connection ? [...(await connection.getStats()).values()] : [];
      return reports.some((it) => it.type === "inbound-rtp" && it.packetsReceived > 50 && it.totalAudioEnergy > 0);
    }),
  );
  assert.match((await page.textContent("#words")) ?? "", /\w/);
  assert.deepEqual(faults, []);
  await page.close();
});

test("the page holds a call by WebRTC where that is chosen, records both sides, and says when there is no room", async (t) => {
  const server = await Server.start("--model", "echo", "--slots", "2", "--webrtc", "1", "--drain-timeout-s", "1");
  t.after(() => server.stop());
  const [one, other] = await Promise.all([openPage(browser, server.url), openPage(browser, server.url)]);
  for (const { page } of [one, other]) {
    await openSettings(page);
    await page.selectOption(TRAVELS, "webrtc");
    await page.click("#settings button[value=close]");
  }
  const { page } = one;
  const pressedMs = Date.now();
  await call(page);
  const isHeard = async () => Number(await page.$eval("#level-reply", (it) => getComputedStyle(it).getPropertyValue("--level"))) > 0.3;
  await eventually("the reply is heard", isHeard);
  t.diagnostic(`first sound ${Date.now() - pressedMs} ms after the button`);
  await talkedFor(page, 7);
  await page.click("#latency summary");
  await eventually("a round trip was timed", async () => Number.isFinite((await numbers(page))["roundTripMs"]));
  assert.match((await page.textContent('[data-name="path"]')) ?? "", /WebRTC/);
  await heardWhole(page, 4);

  await other.page.click("#talk");
  await inState(other.page, "full");
  await says(other.page, /full/);

  await server.stop("SIGTERM");
  await inState(page, "lost");
  await says(page, /server is restarting|Reconnecting|shutting/i);
  await page.click("#talk");
  await inState(page, "ended");
  const { sides } = await saveRecording(page);
  const [mine, theirs] = /** @type {[Float32Array, Float32Array]} */ (sides);
  const echo = bestEcho(mine, theirs, 3000);
  t.diagnostic(`echo: correlation ${echo.correlation.toFixed(3)} after ${echo.delayMs} ms`);
  assert.ok(echo.correlation > 0.7, `the echo is what was said: ${echo.correlation}`);
  const unexpected = one.complaints.filter((it) => !it.includes("ERR_CONNECTION_REFUSED")); // the server has ended
  assert.deepEqual(unexpected, []);
  await Promise.all([one.close(), other.close()]);
});
