/** The latency panel: the numbers of a call twice a second, and their last minute as a line. */

import { History } from "./latency.js";
import { drawPlot } from "./plot.js";
import { qualityOf } from "./quality.js";

const EVERY_MS = 250;
const MINUTE = 60_000 / EVERY_MS;
/** What the word for a call looks back at. */
const RECENT = 10_000 / EVERY_MS;

/** @typedef {import("./call.js").Numbers} Numbers */

/** @type {readonly [keyof Numbers, string, string, number][]} number, label, unit, digits */
const ROWS = [
  ["mouthToEarMs", "Mouth to ear", "ms", 0],
  ["roundTripMs", "Network round trip", "ms", 0],
  ["jitterMs", "Jitter", "ms", 1],
  ["bufferMs", "Buffered now", "ms", 0],
  ["leadMs", "Buffer kept ready", "ms", 0],
  ["gaps", "Gaps", "", 0],
  ["stepMs", "Server step", "ms", 1],
  ["waitMs", "Server waiting", "ms", 1],
  ["late", "Late frames", "", 0],
  ["lost", "Lost or dropped", "", 0],
  ["path", "Path", "", 0],
];

export class Panel {
  /**
   * @param {{ panel: HTMLDetailsElement, list: HTMLElement, plot: HTMLCanvasElement, short: HTMLElement,
   *   quality: HTMLElement }} parts
   */
  constructor(parts) {
    this._parts = parts;
    this._history = new History(MINUTE);
    this._gaps = 0;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this._timer = undefined;
    /** @type {Map<keyof Numbers, HTMLElement>} */
    this._cells = new Map();
    for (const [name, label] of ROWS) {
      const row = document.createElement("div");
      const term = document.createElement("dt");
      term.textContent = label;
      const cell = document.createElement("dd");
      cell.dataset["name"] = name;
      row.append(term, cell);
      parts.list.append(row);
      this._cells.set(name, cell);
    }
    parts.panel.addEventListener("toggle", () => this._draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._draw());
  }

  /** @param {() => Numbers} ask the numbers of a call that begins */
  begin(ask) {
    this.stop();
    this._history = new History(MINUTE);
    this._gaps = 0;
    this._parts.panel.hidden = false;
    this._timer = setInterval(() => this._update(ask()), EVERY_MS);
  }

  /** The call is over; its numbers stay. */
  stop() {
    clearInterval(this._timer);
  }

  /** There was no call. */
  hide() {
    this.stop();
    this._parts.panel.hidden = true;
  }

  /** @param {Numbers} numbers */
  _update(numbers) {
    this._history.push(numbers.mouthToEarMs, numbers.gaps > this._gaps);
    this._gaps = numbers.gaps;
    this._parts.short.textContent = numbers.mouthToEarMs === null ? "–" : `${Math.round(numbers.mouthToEarMs)} ms`;
    const recentGaps = this._history.points.slice(-RECENT).filter((it) => it.isMarked).length;
    const word = qualityOf({ mouthToEarMs: numbers.mouthToEarMs, recentGaps, silentMs: numbers.silentMs });
    if (this._parts.quality.textContent !== word) this._parts.quality.textContent = word;
    this._parts.quality.dataset["quality"] = word;
    for (const [name, , unit, digits] of ROWS) {
      const cell = this._cells.get(name);
      if (!cell) continue;
      const value = numbers[name];
      const text = typeof value === "number" ? value.toFixed(digits) : (value ?? "–");
      if (cell.dataset["value"] === text) continue;
      cell.dataset["value"] = text;
      const small = document.createElement("small");
      small.textContent = value === null ? "" : ` ${unit}`;
      cell.replaceChildren(text, small);
    }
    this._draw();
  }

  _draw() {
    if (this._parts.panel.open && !document.hidden) drawPlot(this._parts.plot, this._history);
  }
}
