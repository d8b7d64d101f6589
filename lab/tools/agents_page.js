// Speaks with an agent by OpenAI's agents SDK in a page, over WebRTC; one JSON line: events, words, sound.
// Usage: node lab/tools/agents_page.js URL BUNDLE, with the surroundings of tests/support/node.py.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

import { PATIENCE_MS, openBrowser } from "../../tests/web/browser/lib.js";

const [url = "", bundle = ""] = process.argv.slice(2);
const PAGE = '<!doctype html><meta charset="utf-8"><audio id="speaker"></audio><script src="sdk.js"></script>';

/** In the page: a session as the SDK's guide writes it. @param {string} server */
async function talk(server) {
  const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebRTC } = /** @type {any} */ (window).OpenAIAgentsRealtime;
  const audioElement = document.getElementById("speaker");
  const transport = new OpenAIRealtimeWebRTC({ useInsecureApiKey: true, audioElement, baseUrl: `${server}/v1/realtime/calls` });
  const agent = new RealtimeAgent({ name: "Robin", instructions: "Answer in one sentence." });
  const session = new RealtimeSession(agent, { transport, model: "assistant" });
  const met = { events: /** @type {Record<string, number>} */ ({}), errors: /** @type {string[]} */ ([]), callId: "" };
  Object.assign(window, { session, met });
  transport.on("*", (/** @type {{ type: string }} */ { type }) => (met.events[type] = (met.events[type] ?? 0) + 1));
  session.on("error", (/** @type {any} */ { error }) => met.errors.push(JSON.stringify(error)));
  await session.connect({ apiKey: "unused" });
  met.callId = transport.callId;
}

/** In the page: what came so far. */
async function look() {
  const { session, met } = /** @type {any} */ (window);
  const reports = [...(await session.transport.connectionState.peerConnection.getStats()).values()];
  const { packetsReceived = 0, totalAudioEnergy = 0 } = reports.find((it) => it.type === "inbound-rtp") ?? {};
  const plays = Boolean(/** @type {HTMLAudioElement} */ (document.getElementById("speaker")).srcObject);
  return { ...met, history: session.history, heard: { packetsReceived, totalAudioEnergy, plays } };
}

const files = new Map([["/", { type: "text/html", body: PAGE }]]);
files.set("/sdk.js", { type: "text/javascript", body: await readFile(bundle, "utf8") });
const host = createServer((asked, answer) => {
  const file = files.get(asked.url ?? "");
  answer.writeHead(file ? 200 : 404, { "content-type": file?.type ?? "text/plain" }).end(file?.body);
});
await new Promise((resolve) => host.listen(0, "127.0.0.1", () => resolve(null)));
const address = host.address();
const browser = await openBrowser("--autoplay-policy=no-user-gesture-required");
try {
  const page = await browser.newPage();
  /** @type {string[]} */
  const warnings = [];
  page.on("console", (it) => ["warning", "error"].includes(it.type()) && warnings.push(it.text()));
  page.on("pageerror", (error) => warnings.push(String(error)));
  await page.goto(`http://127.0.0.1:${typeof address === "object" && address ? address.port : 0}/`);
  await page.evaluate(talk, url);
  const end = Date.now() + PATIENCE_MS;
  let met = await page.evaluate(look);
  // The agent answers the question of the microphone.
  while (!met.events["response.done"] || !met.heard.totalAudioEnergy) {
    if (Date.now() > end) throw new Error(`came so far: ${JSON.stringify({ met, warnings })}`);
    await page.waitForTimeout(200);
    met = await page.evaluate(look);
  }
  await page.evaluate(() => /** @type {any} */ (window).session.interrupt());
  await page.waitForTimeout(1000);
  met = await page.evaluate(look);
  await page.evaluate(() => /** @type {any} */ (window).session.close());
  process.stdout.write(`${JSON.stringify({ ...met, warnings })}\n`);
} finally {
  await browser.close();
  host.close();
}
