// A connection that breaks under a call: the call goes on, and the page says so.
import assert from "node:assert/strict";
import { connect, createServer } from "node:net";
import { after, before, test } from "node:test";

import { call, eventually, inState, openBrowser, openPage, says, Server, talkedFor } from "./lib.js";

/** @type {import("playwright-core").Browser} */
let browser;

before(async () => void (browser = await openBrowser()));
after(() => browser?.close());

/** What lies between a page and its server, and can be cut. @param {number} port */
async function network(port) {
  /** @type {Set<import("node:net").Socket>} */
  const sockets = new Set();
  const proxy = createServer((near) => {
    const far = connect(port, "127.0.0.1");
    for (const [one, other] of [[near, far], [far, near]]) {
      if (!one || !other) continue;
      sockets.add(one);
      one.on("error", () => {}).on("close", () => void (sockets.delete(one), other.destroy()));
      one.pipe(other);
    }
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", () => resolve(null)));
  const address = proxy.address();
  return {
    url: `http://127.0.0.1:${typeof address === "object" && address ? address.port : 0}`,
    cut: () => sockets.forEach((socket) => socket.resetAndDestroy()),
    close: () => proxy.close(),
  };
}

test("a call goes on after each cut of its connection, as the same conversation", async (t) => {
  const server = await Server.start("--backend", "null", "--slots", "1");
  t.after(() => server.stop());
  const between = await network(server.port);
  t.after(() => between.close());
  const { page, close } = await openPage(browser, between.url);
  await call(page);
  await talkedFor(page, 2);
  for (const times of [1, 2]) {
    between.cut();
    await eventually("it is said that the call went on", async () => {
      const words = (await page.textContent("#transcript")) ?? "";
      return words.split("The connection was lost for a moment.").length === times + 1;
    });
    await inState(page, "live");
    await says(page, /You are back\. .*The conversation continues\.|It is|You are speaking/);
    const loudness = () => page.$eval("#level-reply", (it) => Number(getComputedStyle(it).getPropertyValue("--level")));
    await eventually("the reply is heard again", async () => (await loudness()) > 0.3, loudness);
  }
  assert.doesNotMatch((await page.textContent("#transcript")) ?? "", /new conversation/);
  const metrics = await (await fetch(`${server.url}/metrics`)).text();
  assert.match(metrics, /antiphon_resumptions_total\{model="[^"]+",outcome="resumed"\} 2\.0/);
  await page.click("#talk");
  await says(page, /The call is over\./);
  await close();
});
