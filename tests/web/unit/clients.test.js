import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { clientLines } from "../../../web/static/clients.js";

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
