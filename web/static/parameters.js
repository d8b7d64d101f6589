/** A session's parameters: what the server says they may be, how people call them, what a query says of them. Pure. */

/** Where each of the page's views finds its models. */
export const PATHS = Object.freeze({ talk: "/api/chat", transcribe: "/api/asr-streaming", read: "/api/tts_streaming" });

/**
 * @typedef {{ low: number, high: number, is_whole: boolean, zero_means: string, is_optional: boolean }} Range
 * @typedef {{ name: string, kind: string, paths: string[], is_default: boolean, slots: { used: number, queued: number, total: number },
 *   parameters: Record<string, number | null>, ranges: Record<string, Range>, voices: string[] | null, card?: Card }} Model
 * @typedef {{ description: string, license: string, examples: string[], parameters: number,
 *   voices?: Record<string, string> }} Card `voices`: what people call them, by their ids
 * @typedef {Record<string, number | null>} Values null is the default of parameters that have no number
 */

/** Every parameter in the order of the page: its name for people, and what it does. */
export const LABELS = /** @type {Readonly<Record<string, [string, string]>>} */ (
  Object.freeze({
    text_temperature: ["Words: temperature", "Higher is more surprising."],
    text_topk: ["Words: choices", "How many candidates a word is drawn from."],
    audio_temperature: ["Voice: temperature", "Higher is livelier, lower is flatter."],
    audio_topk: ["Voice: choices", "How many candidates a sound is drawn from."],
    pad_mult: ["Pauses", "Above 0 it speaks less, below 0 more."],
    repetition_penalty: ["Repetition penalty", "1 is none."],
    repetition_penalty_context: ["Repetition memory", "Over how many of the last pieces of words."],
    text_seed: ["Words: seed", "The same seed, the same dice."],
    audio_seed: ["Voice: seed", "The same seed, the same dice."],
    max_steps: ["Longest call", "In frames of 80 milliseconds."],
  })
);

/**
 * The models of a path, the server's own choice first.
 *
 * @param {Model[]} models
 * @param {string} path
 */
export function modelsOf(models, path) {
  const ours = models.filter((model) => model.paths.includes(path));
  return [...ours.filter((model) => model.is_default), ...ours.filter((model) => !model.is_default)];
}

/**
 * The models and, as models that one can talk to, the voice agents.
 *
 * @param {{ models: Model[], agents?: { name: string, stt: string, tts: string }[] }} answer of /api/models
 * @returns {Model[]}
 */
export function withAgents({ models, agents = [] }) {
  const talkers = agents.map(({ name, stt, tts }) => {
    const [heard, said] = [stt, tts].map((part) => models.find((model) => model.name === part));
    const parts = [heard, said].map((part) => part?.slots ?? { used: 0, total: 0 });
    const total = Math.min(...parts.map((it) => it.total));
    const used = total - Math.min(...parts.map((it) => it.total - it.used));
    const slots = { used, queued: 0, total };
    const description = `It hears with ${stt} and speaks with ${tts}; a text model writes its answers.`;
    const card = { description, license: "", examples: [], parameters: 0, voices: said?.card?.voices ?? {} };
    const voices = said?.voices ?? [];
    return { name, kind: "agent", paths: [PATHS.talk], is_default: false, slots, parameters: {}, ranges: {}, voices, card };
  });
  return [...models, ...talkers];
}

/** @param {string} name */
export function labelOf(name) {
  return LABELS[name] ?? [name, ""];
}

/**
 * How finely a slider moves.
 *
 * @param {Range} range
 */
export function stepOf(range) {
  return range.is_whole ? 1 : 0.05;
}

/** Whether a parameter is set by typing a number: seeds and the like, whose range no slider can show.
 * @param {Range} range
 */
export function isTyped(range) {
  return range.is_whole && range.high > 10_000;
}

/** Where a slider begins: at 0 where that means something.
 * @param {Range} range
 */
export function sliderLow(range) {
  return range.zero_means ? Math.min(0, range.low) : range.low;
}

/**
 * The nearest value a parameter may have: between 0 and the least, one of these two.
 *
 * @param {number} value
 * @param {Range} range
 */
export function snap(value, range) {
  const rounded = range.is_whole ? Math.round(value) : Math.round(value * 100) / 100;
  if (range.zero_means && rounded < range.low) return rounded < range.low / 2 ? 0 : range.low;
  return Math.min(range.high, Math.max(range.low, rounded));
}

/**
 * @param {number | null} value
 * @param {Range} range
 */
export function show(value, range) {
  if (value === null) return range.is_optional ? "no limit" : "random";
  if (value === 0 && range.zero_means) return range.zero_means;
  return range.is_whole ? String(value) : value.toFixed(2);
}

/**
 * The query of a connection: what differs from the defaults, and what every one of ours has.
 *
 * @param {object} wish
 * @param {Model | null} wish.model
 * @param {Values} wish.values
 * @param {string} wish.format
 * @param {number} wish.waitS
 * @param {string} wish.textPrompt
 * @param {string} wish.voicePrompt
 * @param {string} wish.key what a server that asks for one is shown
 */
export function queryOf({ model, values, format, waitS, textPrompt, voicePrompt, key }) {
  const query = new URLSearchParams({ ext: "1", format, resume: "1", wait: String(waitS) });
  if (model) query.set("model", model.name);
  for (const [name, value] of Object.entries(changed(model, values))) query.set(name, String(value));
  if (textPrompt && model?.voices) query.set("text_prompt", textPrompt);
  if (voicePrompt && model?.voices?.includes(voicePrompt)) query.set("voice_prompt", voicePrompt);
  if (key) query.set("auth_id", key);
  return query.toString();
}

/**
 * The values that are not the model's defaults.
 *
 * @param {Model | null} model
 * @param {Values} values
 */
export function changed(model, values) {
  return Object.fromEntries(
    Object.entries(values).filter(
      ([name, value]) => value !== null && model?.ranges[name] !== undefined && value !== model.parameters[name],
    ),
  );
}
