import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { clientLines } from "../../../web/static/clients.js";

const PLACE = { base: "http://127.0.0.1:8998", model: "tiny", hasKeys: false };

test("the lines are those of the how-to, which its tests run", async () => {
  const text = await readFile(new URL("../../../docs/live.md", import.meta.url), "utf8");
  const blocks = [...text.matchAll(/```python\n(.*?)\n```/gs)].map((match) => match[1]);
  for (const { name, lines } of clientLines(PLACE)) assert.ok(blocks.includes(lines), name);
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
