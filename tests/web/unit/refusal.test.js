// What a server, or something on the way to it, says to who asks why.
import assert from "node:assert/strict";
import { test } from "node:test";

import { explain, UNSAID_RETRY_S } from "../../../web/static/refusal.js";

/**
 * @param {number} status
 * @param {string} body
 * @param {Record<string, string>} headers
 */
function answer(status, body = "", headers = {}) {
  /** @type {string[]} */
  const asked = [];
  const ask = /** @type {any} */ (
    async (/** @type {string} */ url) => {
      asked.push(url);
      return new Response(body, { status, headers: { "Content-Type": "text/plain", ...headers } });
    }
  );
  return { asked, said: explain("wss://host/api/chat?ext=1", ask) };
}

test("the same address is asked, without a socket", async () => {
  const { asked, said } = answer(404, "no model 'x' here\n");
  assert.deepEqual(await said, { kind: "never", message: "no model 'x' here\n" });
  assert.deepEqual(asked, ["https://host/api/chat?ext=1"]);
});

test("a key is asked for in our words", async () => {
  const refusal = await answer(401, "no key").said;
  assert.ok(refusal?.kind === "never" && /under Settings/.test(refusal.message));
});

test("a server that only wants a WebSocket did not refuse one", async () => {
  assert.deepEqual(await answer(426, "this is a WebSocket").said, { kind: "open" });
});

test("too many calls of one's own, and too many of all, are a matter of time", async () => {
  const json = { "Content-Type": "application/json", "Retry-After": "7" };
  const limited = { kind: "limited", message: "1 of 1 sessions", retryAfterS: 7 };
  assert.deepEqual(await answer(429, '{"error": "1 of 1 sessions"}', json).said, limited);
  assert.deepEqual(await answer(429, "1 of 1 sessions").said, { ...limited, retryAfterS: UNSAID_RETRY_S });
  const full = { kind: "full", message: "all 2 rows are taken", retryAfterS: 7 };
  assert.deepEqual(await answer(503, '{"error": "all 2 rows are taken", "code": 1013}', json).said, full);
});

test("only a worker says that it is full: it may be leaving or lost, and a proxy may have none", async () => {
  const json = { "Content-Type": "application/json; charset=utf-8", "Retry-After": "10" };
  const leaving = { kind: "leaving", retryAfterS: 10 };
  assert.deepEqual(await answer(503, '{"error": "the server is shutting down", "code": 1001}', json).said, leaving);
  assert.equal(await answer(503, '{"error": "the model can no longer run", "code": 1011}', json).said, null);
  const absent = { kind: "absent", retryAfterS: 5 };
  const text = "no worker of this model is running; try again soon\n";
  assert.deepEqual(await answer(503, text, { "Retry-After": "5" }).said, absent);
});

test("a proxy's page is not read out", async () => {
  const refusal = await answer(403, "<html>Forbidden</html>", { "Content-Type": "text/html" }).said;
  assert.deepEqual(refusal, { kind: "never", message: "the answer was 403" });
});

test("who is not there says nothing", async () => {
  for (const status of [502, 503, 500, 200]) assert.equal(await answer(status).said, null);
  const fails = /** @type {any} */ (() => Promise.reject(new TypeError("no network")));
  assert.equal(await explain("ws://host/", fails), null);
});
