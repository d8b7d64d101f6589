/** The voices of a model, and where one is chosen. */

/** @typedef {import("./parameters.js").Model} Model */

/** The voice that a talker takes unasked. */
export const OWN_VOICE = "Its own";

/** @param {Model | null | undefined} model @param {string} id @returns {string} what people call the voice */
export function nameOf(model, id) {
  return model?.card?.voices?.[id] ?? id;
}

/**
 * The values and words of a choice.
 *
 * @param {Model | null} model
 * @param {string} own what the voice is called that the model takes unasked; "" to name none
 * @returns {[string, string][]}
 */
export function voicesOf(model, own = "") {
  const voices = (model?.voices ?? []).map((id) => /** @type {[string, string]} */ ([id, nameOf(model, id)]));
  return own && voices.length ? [["", own], ...voices] : voices;
}

/**
 * Offer voices in a view.
 *
 * @param {HTMLElement} field hidden where there is nothing to choose
 * @param {HTMLSelectElement} select
 * @param {[string, string][]} choices
 * @param {string} chosen
 */
export function offer(field, select, choices, chosen) {
  select.replaceChildren(...choices.map(([id, name]) => new Option(name, id, false, id === chosen)));
  field.hidden = choices.length < 2;
}
