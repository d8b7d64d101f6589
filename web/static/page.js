/** What every view of the page uses: its parts by name, texts, copies and files. */

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
export function part(id, kind) {
  const element = document.getElementById(id);
  if (!(element instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return element;
}

export const clock = () => performance.now();

/**
 * Change a text only where it differs, so that screen readers say it once.
 *
 * @param {HTMLElement} element
 * @param {string} text
 */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The headline and the line below it. @param {import("./words.js").Words} words */
export function headline(words) {
  if (words.isTrouble) document.body.dataset["trouble"] = "";
  else delete document.body.dataset["trouble"];
  part("status", HTMLElement).setAttribute("aria-live", words.isPassing ? "off" : "polite");
  write(part("status", HTMLElement), words.line);
  write(part("help", HTMLElement), words.help);
}

/** @param {Blob} blob @param {string} name of the file */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** A name for a file of now. @param {string} suffix */
export function fileName(suffix) {
  return `antiphon-${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}${suffix}`;
}

/**
 * Copy a text, and say so on the button for a moment.
 *
 * @param {HTMLButtonElement} button
 * @param {string} text
 */
export async function copy(button, text) {
  const label = button.textContent ?? "";
  if (button.dataset["label"]) return; // still saying so
  button.dataset["label"] = label;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here"; // without HTTPS, or where the visitor said no
  }
  setTimeout(() => {
    button.textContent = label;
    delete button.dataset["label"];
  }, 1500);
}

/** @param {string} path with its query, below this page @returns {string} for a WebSocket */
export function socketAddress(path) {
  const url = new URL(path, document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  return url.href;
}
