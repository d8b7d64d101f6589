// What the settings make of the server's ranges, and what a query says.
import assert from "node:assert/strict";
import { test } from "node:test";

import { changed, isTyped, labelOf, modelsOf, PATHS, queryOf, show, sliderLow, snap, withAgents } from "../../../web/static/parameters.js";

const TEMPERATURE = { low: 0.2, high: 1.2, is_whole: false, zero_means: "greedy", is_optional: false };
const TOPK = { low: 10, high: 500, is_whole: true, zero_means: "all", is_optional: false };
const SEED = { low: 0, high: 2 ** 63, is_whole: true, zero_means: "", is_optional: false };
const STEPS = { low: 1, high: 2 ** 31 - 1, is_whole: true, zero_means: "", is_optional: true };
const PAUSES = { low: -4, high: 4, is_whole: false, zero_means: "", is_optional: false };

/** @type {import("../../../web/static/parameters.js").Model} */
const MODEL = {
  name: "a model",
  kind: "duplex",
  paths: ["/api/chat"],
  is_default: false,
  slots: { used: 0, queued: 0, total: 1 },
  parameters: { text_temperature: 0.7, text_topk: 25, text_seed: null },
  ranges: { text_temperature: TEMPERATURE, text_topk: TOPK, text_seed: SEED },
  voices: null,
};
const WISH = { model: MODEL, values: {}, format: "opus", waitS: 60, textPrompt: "be kind", voicePrompt: "ada", key: "" };

test("between 0 and the least there is nothing", () => {
  assert.deepEqual([0.05, 0.1, 0.15, 0.74, 2, -1].map((it) => snap(it, TEMPERATURE)), [0, 0.2, 0.2, 0.74, 1.2, 0]);
  assert.deepEqual([3, 7, 10.4, 999].map((it) => snap(it, TOPK)), [0, 10, 10, 500]);
  assert.deepEqual([-9, 0.333, 4.1].map((it) => snap(it, PAUSES)), [-4, 0.33, 4]);
});

test("values are shown in words where they have some", () => {
  assert.deepEqual([show(0, TEMPERATURE), show(0.7, TEMPERATURE), show(0, TOPK), show(25, TOPK)], ["greedy", "0.70", "all", "25"]);
  assert.deepEqual([show(null, SEED), show(null, STEPS), show(0, PAUSES)], ["random", "no limit", "0.00"]);
});

test("seeds are typed, the rest has sliders that reach 0 where it means something", () => {
  assert.deepEqual([TEMPERATURE, TOPK, SEED, STEPS, PAUSES].map(isTyped), [false, false, true, true, false]);
  assert.deepEqual([TEMPERATURE, TOPK, PAUSES].map(sliderLow), [0, 0, -4]);
});

test("a query says what differs, and what every one of ours has", () => {
  assert.equal(queryOf(WISH), "ext=1&format=opus&resume=1&wait=60&model=a+model");
  const values = { text_temperature: 0.7, text_topk: 50, text_seed: 7, unheard_of: 3 };
  assert.equal(queryOf({ ...WISH, values }), "ext=1&format=opus&resume=1&wait=60&model=a+model&text_topk=50&text_seed=7");
  assert.deepEqual(changed(MODEL, { text_seed: null, text_topk: 25 }), {});
});

test("a prompt is only said to a model that takes one", () => {
  assert.match(queryOf({ ...WISH, model: { ...MODEL, voices: ["ada"] } }), /text_prompt=be\+kind&voice_prompt=ada$/);
  assert.match(queryOf({ ...WISH, model: { ...MODEL, voices: ["bob"] } }), /text_prompt=be\+kind$/, "the voice of another model");
  assert.equal(queryOf({ ...WISH, model: null }), "ext=1&format=opus&resume=1&wait=60");
});

test("a key is shown to a server that asks for one", () => {
  assert.match(queryOf({ ...WISH, key: "a b" }), /&auth_id=a\+b$/);
});

test("only models of a view's path are offered, the server's choice first", () => {
  const stt = { ...MODEL, name: "stt", paths: ["/api/asr-streaming"], is_default: true };
  const chosen = { ...MODEL, name: "chosen", is_default: true };
  assert.deepEqual(modelsOf([stt, MODEL, chosen], PATHS.talk).map((it) => it.name), ["chosen", "a model"]);
  assert.deepEqual(modelsOf([stt, MODEL, chosen], PATHS.transcribe), [stt]);
});

test("a parameter of tomorrow goes by its own name", () => {
  assert.deepEqual(labelOf("text_mood"), ["text_mood", ""]);
  assert.equal(labelOf("text_topk")[0], "Words: choices");
});

test("a voice agent is a model to talk to, with its synthesiser's voices and no sampling", () => {
  const ears = { ...MODEL, name: "ears", kind: "stt", paths: ["/api/asr-streaming"], slots: { used: 0, queued: 0, total: 4 } };
  const voice = { ...MODEL, name: "voice", kind: "tts", paths: ["/api/tts_streaming"], voices: ["ada"], slots: { used: 0, queued: 0, total: 3 } };
  const all = withAgents({ models: [ears, voice, MODEL], agents: [{ name: "assistant", stt: "ears", tts: "voice" }] });
  const talkers = modelsOf(all, PATHS.talk);
  assert.deepEqual(talkers.map((it) => [it.name, it.kind]), [["a model", "duplex"], ["assistant", "agent"]]);
  const agent = talkers[1];
  assert.deepEqual([agent?.slots.total, agent?.voices, agent?.ranges], [3, ["ada"], {}]);
  const query = new URLSearchParams(queryOf({ ...WISH, model: agent ?? null, values: { text_topk: 9 } }));
  assert.deepEqual(["model", "text_topk", "text_prompt"].map((key) => query.get(key)), ["assistant", null, "be kind"]);
  assert.deepEqual(withAgents({ models: [MODEL] }), [MODEL]);
});

test("an agent is as busy as the busier of its parts, and has no call without both", () => {
  const ears = { ...MODEL, name: "ears", slots: { used: 1, queued: 2, total: 8 } };
  const voice = { ...MODEL, name: "voice", slots: { used: 3, queued: 0, total: 4 } };
  const agents = [{ name: "assistant", stt: "ears", tts: "voice" }];
  const slotsOf = (/** @type {typeof MODEL[]} */ models) => withAgents({ models, agents }).at(-1)?.slots;
  assert.deepEqual(slotsOf([ears, voice]), { used: 3, queued: 0, total: 4 });
  const full = { ...ears, slots: { used: 8, queued: 2, total: 8 } };
  assert.deepEqual(slotsOf([full, voice]), { used: 4, queued: 0, total: 4 });
  for (const models of [[], [ears], [voice]]) assert.deepEqual(slotsOf(models), { used: 0, queued: 0, total: 0 });
});
