/** Recorded questions, for those without a microphone: made by lab/tools/make_clips.py, spoken into the call. */

const CLIPS = /** @type {Readonly<Record<string, string>>} */ (
  Object.freeze({
    "what is your name": "name",
    "what is five plus four": "sum",
    "what colour is snow": "snow",
    "what does a cow say": "cow",
    "what colour is a tomato": "tomato",
    "what is two plus two": "plus",
  })
);

/**
 * The recording of a question, if there is one.
 *
 * @param {string} text as a model's card has it
 * @returns {URL | null}
 */
export function recordingOf(text) {
  const name = CLIPS[text.toLowerCase().replace(/[^a-z ]/g, "").trim()];
  return name ? new URL(`./questions/${name}.ogg`, import.meta.url) : null;
}

/** Every question. */
export const QUESTIONS = Object.freeze(Object.keys(CLIPS).map((text) => `${text[0]?.toUpperCase()}${text.slice(1)}?`));

/** What is said where a model has no questions of its own: an echo repeats it. */
export const ANY_QUESTION = "What is your name?";
