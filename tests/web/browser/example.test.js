// The page of examples/browser.html, from an origin of its own: it calls, and plays what comes back.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { after, before, test } from "node:test";

import { eventually, openBrowser, Server } from "./lib.js";

/** @type {import("playwright-core").Browser} */
let browser;

before(async () => void (browser = await openBrowser()));
after(() => browser?.close());

test("a page of one's own holds a call", async (t) => {
  const file = await readFile(new URL("../../../examples/browser.html", import.meta.url));
  const host = createServer((_, answer) => answer.setHeader("content-type", "text/html").end(file));
  await new Promise((resolve) => host.listen(0, "127.0.0.1", () => resolve(null)));
  t.after(() => host.close());
  const address = host.address();
  const origin = `http://127.0.0.1:${typeof address === "object" && address ? address.port : 0}`;
  const server = await Server.start("--backend", "null", "--slots", "1", "--allow-origin", origin);
  t.after(() => server.stop());
  const page = await browser.newPage();
  /** @type {string[]} */
  const faults = [];
  page.on("pageerror", (error) => faults.push(error.message));
  let frames = 0;
  page.on("websocket", (socket) =>
    socket.on("framereceived", ({ payload }) => void (frames += payload.length > 3000 ? 1 : 0)),
  );
  await page.goto(`${origin}/?server=${server.url.replace("http", "ws")}`);
  await page.click("#talk");
  await eventually("a second of replies has come", () => Promise.resolve(frames > 12));
  assert.match((await page.textContent("#words")) ?? "", /\w/);
  assert.deepEqual(faults, []);
  await page.close();
});
