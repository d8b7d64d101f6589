import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { clientLines, linesFor } from "../../../web/static/clients.js";

const PLACE = { base: "http://127.0.0.1:8998", model: "tiny", hasKeys: false };

const PROGRAMS = /** @type {Record<string, string>} */ ({
  openai: "openai_live.py",
  pipecat: "pipecat_agent.py",
  LiveKit: "livekit_agent.py",
});

test("the lines are those of the examples, which the tests run", async () => {
  for (const { name, lines } of clientLines(PLACE)) {
    const program = await readFile(new URL(`../../../examples/${PROGRAMS[name]}`, import.meta.url), "utf8");
    const shown = program
      .replace("base_url=url", 'base_url="http://127.0.0.1:8998/v1"')
      .replace('f"{url}/live/sessions"', '"ws://127.0.0.1:8998/v1/live/sessions"');
    const known = new Set(shown.split("\n").map((line) => line.trim()));
    assert.ok(lines.split("\n").every((line) => line.length < 80), `${name} fits its box`);
    const code = lines.split("\n").filter((line) => line && !line.startsWith("#"));
    for (const line of code) assert.ok(known.has(line.trim()), `${name}: ${line}`);
  }
});

test("they name the server and the model", () => {
  for (const { lines } of clientLines({ base: "https://voice.example/a", model: "echo", hasKeys: false })) {
    assert.match(lines, /"(https|wss):\/\/voice\.example\/a\/v1/);
    assert.match(lines, /"echo"/);
    assert.match(lines, /api_key="any key"/);
  }
});

test("where keys are asked for there is a place for one", () => {
  for (const { lines } of clientLines({ ...PLACE, hasKeys: true })) assert.match(lines, /api_key="your key"/);
});

/** @type {any[]} */
const MODELS = [
  { name: "tiny", kind: "duplex", paths: ["/api/chat"], is_default: true },
  { name: "tiny-stt", kind: "stt", paths: ["/api/asr-streaming"], is_default: true },
  { name: "tiny-tts", kind: "tts", paths: ["/api/tts_streaming"], is_default: true },
];
const SERVER = { base: "http://127.0.0.1:8998", hasKeys: false };

test("recognisers and synthesisers are called with curl, the open view's first, and no conversation by client.audio", () => {
  const names = (/** @type {any} */ view) => linesFor(MODELS, SERVER, view).map(({ name }) => name);
  assert.deepEqual(names("talk"), ["openai", "pipecat", "LiveKit", "curl, to write down", "curl, to read aloud"]);
  assert.equal(names("transcribe")[0], "curl, to write down");
  const [read, ...others] = linesFor(MODELS, SERVER, "read");
  assert.equal(
    read?.lines.replaceAll(/ \\\n +/g, " "),
    `curl http://127.0.0.1:8998/v1/audio/speech -H 'content-type: application/json' -d '{"model":"tiny-tts","input":"the sky is blue"}' -o out.mp3`,
  );
  assert.equal(
    others.at(-1)?.lines.replaceAll(/ \\\n +/g, " "),
    "curl http://127.0.0.1:8998/v1/audio/transcriptions -F model=tiny-stt -F file=@speech.wav",
  );
  assert.doesNotMatch(JSON.stringify(others), /client\.audio/);
});

test("a server has lines for what it serves alone, with a place for a key", () => {
  assert.deepEqual(linesFor([], SERVER, "talk"), []);
  const [only, ...none] = linesFor(MODELS.slice(1, 2), { ...SERVER, hasKeys: true }, "talk");
  assert.equal(none.length, 0);
  assert.match(only?.lines ?? "", / \\\n {2}-H 'authorization: Bearer your key' \\\n/);
});
