// A key where OpenAI's browser clients put theirs: a browser opens no connection unless a name it offered is selected.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { openBrowser, openPage, Server } from "./lib.js";

const KEY = "the-key-of-alice";
const AS_PROTOCOL = `openai-insecure-api-key.${KEY}`;

/** @type {string} */
let folder;
/** @type {Server} */
let server;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "antiphon-keys-"));
  const keys = join(folder, "keys");
  await writeFile(keys, `alice:${createHash("sha256").update(KEY).digest("hex")}\n`);
  [server, browser] = await Promise.all([Server.start("--model", "echo", "--api-keys", keys), openBrowser()]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
  await rm(folder, { recursive: true });
});

test("a connection is opened with a key as a subprotocol, alone or beside others", async () => {
  const { page, close } = await openPage(browser, server.url);
  const selected = (/** @type {string[]} */ ...offered) =>
    page.evaluate(
      ([url, names]) =>
        new Promise((resolve) => {
          const socket = new WebSocket(String(url), names);
          socket.onopen = () => resolve(socket.protocol);
          socket.onerror = () => resolve("failed");
        }),
      /** @type {[string, string[]]} */ ([`${server.url.replace("http", "ws")}/api/chat`, offered]),
    );
  assert.equal(await selected("realtime", AS_PROTOCOL, "openai-beta.realtime-v1"), "realtime");
  assert.equal(await selected(AS_PROTOCOL), AS_PROTOCOL);
  assert.equal(await selected("realtime", `${AS_PROTOCOL}-not`), "failed");
  await close();
});

test("the server's log has the name of the key, and never the key", () => {
  assert.match(server.log, /key=alice/);
  assert.doesNotMatch(server.log, new RegExp(KEY));
});
