/** Who says what in words: pieces as they come, a paragraph for each turn, to be copied and saved. */

import { stopwatch } from "./words.js";

/** A pause this long begins a paragraph. */
const PAUSE_MS = 1500;
/** Older paragraphs go: an hour of talk. */
const MOST_PARAGRAPHS = 500;

/** @typedef {"you" | "reply"} Side */

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
    /** What the two sides are called. @type {Record<Side, string>} */
    this.names = { you: "You", reply: "Reply" };
    /** The paragraph that each side is saying. @type {Map<Side, { text: Text, lastMs: number }>} */
    this._open = new Map();
  }

  /** A new call begins. */
  begin() {
    this._log.replaceChildren();
    this._section.hidden = true;
    this._startMs = this._clock();
    this._open.clear();
  }

  /** @param {Side} side @param {string} text a piece of a word, with its spaces */
  add(side, text) {
    const nowMs = this._clock();
    const open = this._open.get(side);
    if (open && nowMs - open.lastMs <= PAUSE_MS) {
      open.text.appendData(text);
      open.lastMs = nowMs;
    } else {
      this._open.set(side, { text: this._paragraph(side, this.names[side], text.trimStart()), lastMs: nowMs });
    }
    this._follow();
  }

  /** @param {Side} side @param {string} text a whole turn */
  turn(side, text) {
    this._paragraph(side, this.names[side], text);
    this._open.clear();
    this._follow();
  }

  /** @param {string} text a remark of ours between what was said */
  note(text) {
    this._paragraph("remark", "", text);
    this._open.clear();
    this._follow();
  }

  /** How many words a side has. @param {Side} side */
  words(side) {
    const texts = [...this._log.querySelectorAll(`.${side} > span:last-child`)].map((it) => it.textContent ?? "");
    return texts.join(" ").split(/\s+/).filter(Boolean).length;
  }

  /** All of it, a line for each turn. */
  get text() {
    return [...this._log.children]
      .map((it) => [...it.children].map((part) => part.textContent).filter(Boolean))
      .map(([time, ...rest]) => `${time}  ${rest.join(": ")}\n`)
      .join("");
  }

  /**
   * @param {string} kind
   * @param {string} name
   * @param {string} text
   */
  _paragraph(kind, name, text) {
    this._section.hidden = false;
    const time = document.createElement("time");
    time.textContent = stopwatch((this._clock() - this._startMs) / 1000);
    const who = document.createElement("span");
    who.className = "who";
    who.textContent = name;
    const words = document.createElement("span");
    const node = document.createTextNode(text);
    words.append(node);
    const paragraph = document.createElement("p");
    paragraph.className = kind;
    paragraph.append(time, who, words);
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
