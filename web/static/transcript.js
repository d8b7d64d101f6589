/** What the model says in words: pieces as they come, a paragraph for each time it speaks. */

import { stopwatch } from "./words.js";

/** A pause this long begins a paragraph. */
const PAUSE_MS = 1500;
/** Older paragraphs go: an hour of talk. */
const MOST_PARAGRAPHS = 500;

export class Transcript {
  /**
   * @param {HTMLElement} section hidden while there is nothing
   * @param {HTMLElement} log
   * @param {() => number} clock milliseconds
   */
  constructor(section, log, clock) {
    this._section = section;
    this._log = log;
    this._clock = clock;
    this._startMs = 0;
    this._lastMs = -Infinity;
    /** @type {Text | null} */
    this._open = null;
  }

  /** A new call begins. */
  begin() {
    this._log.replaceChildren();
    this._section.hidden = true;
    this._startMs = this._clock();
    this._open = null;
  }

  /** @param {string} text a piece of a word, with its spaces */
  add(text) {
    const nowMs = this._clock();
    if (!this._open || nowMs - this._lastMs > PAUSE_MS) this._open = this._paragraph("", text.trimStart());
    else this._open.appendData(text);
    this._lastMs = nowMs;
    this._follow();
  }

  /** @param {string} text a remark of ours between what was said */
  note(text) {
    this._paragraph("notice", text);
    this._open = null;
    this._follow();
  }

  /**
   * @param {string} kind
   * @param {string} text
   */
  _paragraph(kind, text) {
    this._section.hidden = false;
    const time = document.createElement("time");
    time.textContent = stopwatch((this._clock() - this._startMs) / 1000);
    const words = document.createElement("span");
    const node = document.createTextNode(text);
    words.append(node);
    const paragraph = document.createElement("p");
    paragraph.className = kind;
    paragraph.append(time, words);
    this._log.append(paragraph);
    if (this._log.childElementCount > MOST_PARAGRAPHS) this._log.firstElementChild?.remove();
    return node;
  }

  /** Keep the end in sight, unless somebody has scrolled up to read. */
  _follow() {
    const log = this._log;
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
  }
}
