/** A line above another view: the call continues behind it, or has ended there. */

import { part, write } from "./page.js";
import { stopwatch } from "./words.js";

export class Ongoing {
  constructor() {
    /** Whether the call ended while another view was shown. */
    this.isNews = false;
  }

  /** @param {() => void} onEnd */
  begin(onEnd) {
    part("ongoing-end", HTMLButtonElement).addEventListener("click", onEnd);
  }

  /** @param {boolean} isShown whether the view of the call is @param {boolean} isCalling @param {number} seconds */
  show(isShown, isCalling, seconds) {
    if (isShown) this.isNews = false;
    part("ongoing", HTMLElement).hidden = isShown || !(isCalling || this.isNews);
    write(part("ongoing-words", HTMLElement), isCalling ? `The call continues: ${stopwatch(seconds)}.` : "The call is over.");
    part("ongoing-end", HTMLButtonElement).hidden = !isCalling;
  }
}
