// The page of examples/webrtc.html, from an origin of its own: Chromium calls by WebRTC, and hears the answer.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { after, before, test } from "node:test";

import { eventually, openBrowser, Server } from "./lib.js";

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
