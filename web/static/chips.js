/** Example questions: what can be asked, each spoken by a recorded voice where there is one, one at a time. */

import { recordingOf } from "./questions.js";

export class Chips {
  /**
   * @param {HTMLElement} list
   * @param {HTMLElement} more shows those that are out of sight, where the list is one line
   * @param {(text: string, recording: URL) => void} onAsk
   */
  constructor(list, more, onAsk) {
    this._list = list;
    this._onAsk = onAsk;
    /** @type {HTMLButtonElement[]} */
    this._buttons = [];
    this._more = more;
    more.addEventListener("click", () => this._scroll());
    list.addEventListener("scroll", () => this._hint(), { passive: true });
    new ResizeObserver(() => this._hint()).observe(list);
  }

  /** Fade the list where it scrolls on. */
  _hint() {
    const { scrollLeft, clientWidth, scrollWidth, classList } = this._list;
    const hasBefore = scrollLeft > 1;
    const hasAfter = scrollLeft + clientWidth < scrollWidth - 1;
    classList.toggle("has-before", hasBefore);
    classList.toggle("has-after", hasAfter);
    this._more.hidden = !hasBefore && !hasAfter;
    this._more.classList.toggle("is-end", !hasAfter);
  }

  /** On by most of what is in sight; from the end back to the beginning. */
  _scroll() {
    const { scrollLeft, clientWidth, classList } = this._list;
    this._list.scrollTo({ left: classList.contains("has-after") ? scrollLeft + 0.8 * clientWidth : 0 });
  }

  /** @param {string[]} examples */
  show(examples) {
    this._buttons = [];
    this._list.replaceChildren(...examples.map((text) => this._item(text)));
    this._list.hidden = examples.length === 0;
    this._hint();
  }

  /** @param {boolean} isFree whether a question may be asked now @param {string | null} spoken what is being asked */
  update(isFree, spoken) {
    for (const button of this._buttons) {
      button.setAttribute("aria-disabled", String(!isFree));
      button.classList.toggle("is-spoken", button.textContent === spoken);
    }
  }

  /** @param {string} text */
  _item(text) {
    const item = document.createElement("li");
    const recording = recordingOf(text);
    if (!recording) {
      item.textContent = text;
      return item;
    }
    const button = chip(text, () => this._onAsk(text, recording));
    this._buttons.push(button);
    item.append(button);
    return item;
  }
}

/**
 * A button that is one of several short texts.
 *
 * @param {string} text
 * @param {() => void} onPress
 */
export function chip(text, onPress) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "chip";
  button.textContent = text;
  button.addEventListener("click", ({ detail }) => {
    if (detail > 1) return; // a double click elsewhere, under which the chips have moved
    if (button.getAttribute("aria-disabled") !== "true") onPress();
  });
  return button;
}

/** Fill a list with chips. @param {HTMLElement} list @param {HTMLButtonElement[]} chips */
export function fill(list, chips) {
  list.replaceChildren(
    ...chips.map((it) => {
      const item = document.createElement("li");
      item.append(it);
      return item;
    }),
  );
}
