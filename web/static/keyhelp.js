/** The keys of the page, in a dialog that the key ? opens. */

import { part } from "./page.js";

/** Whether a key that was pressed is a letter of a text, or belongs to the browser. @param {KeyboardEvent} event */
export function isTyping(event) {
  const isField = event.target instanceof Element && event.target.closest("input, select, textarea, dialog");
  return Boolean(isField) || event.ctrlKey || event.metaKey || event.altKey;
}

/** @param {() => boolean} isOn whether single keys do something */
export function beginKeyHelp(isOn) {
  const dialog = part("keys", HTMLDialogElement);
  part("keys-open", HTMLButtonElement).addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && isOn() && !isTyping(event)) dialog.showModal();
  });
}
