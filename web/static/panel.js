/** The latency panel: the numbers of a call twice a second, and their last minute as a line. */

import { History } from "./latency.js";
import { write } from "./page.js";
import { drawPlot } from "./plot.js";
import { qualityOf } from "./quality.js";

const EVERY_MS = 250;
const MINUTE = 60_000 / EVERY_MS;
/** What the word for a call looks back at: for gaps and late frames, and for the delay. */
const RECENT = 10_000 / EVERY_MS;
const NOW = 2000 / EVERY_MS;

/** @typedef {import("./call.js").Numbers} Numbers */

/** What a call without a connection is called. @type {Readonly<Record<Numbers["state"], string>>} */
const STATES = Object.freeze({
  ...{ idle: "Starting", connecting: "Connecting", queued: "Waiting", live: "", lost: "Reconnecting" },
  ...{ full: "Server is full", limited: "Call limit", ended: "Measurements", failed: "Gone" },
});

/** @type {readonly [Exclude<keyof Numbers, "isTrack">, string, string, number][]} number, label, unit, digits */
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
    /** How many frames were late, of each update. @type {number[]} */
    this._late = [];
    /** @type {() => Numbers} */
    this._ask = () => {
      throw new Error("no call has begun");
    };
    /** Of a live call. @type {import("./quality.js").Quality} */
    this.quality = "Starting";
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
    clearInterval(this._timer);
    this._ask = ask;
    this._history = new History(MINUTE);
    this._gaps = 0;
    this._late = [];
    this.quality = "Starting";
    this._parts.panel.hidden = false;
    this._timer = setInterval(() => this.update(), EVERY_MS);
    this.update();
  }

  /** The call is over; its numbers stay. */
  stop() {
    clearInterval(this._timer);
    if (!this._parts.panel.hidden) this.update();
  }

  /** There was no call. */
  hide() {
    clearInterval(this._timer);
    this._parts.panel.hidden = true;
  }

  /** From mouth to ear over the last seconds. */
  get delayMs() {
    return this._history.typical(NOW);
  }

  /** From mouth to ear over the last minute. */
  get typicalMs() {
    return this._history.typical(MINUTE);
  }

  /** Show the numbers of this moment. */
  update() {
    const numbers = this._ask();
    const isLive = numbers.state === "live";
    this._history.push(isLive ? numbers.mouthToEarMs : null, numbers.gaps > this._gaps);
    this._gaps = numbers.gaps;
    this._late = [...this._late.slice(-RECENT), numbers.late];
    const recentGaps = this._history.points.slice(-RECENT).filter((it) => it.isMarked).length;
    const recentLate = Math.max(0, numbers.late - (this._late[0] ?? 0));
    const serverMs = (numbers.stepMs ?? 0) + (numbers.waitMs ?? 0);
    const { silentMs } = numbers;
    this.quality = qualityOf({ mouthToEarMs: numbers.isTrack ? 0 : this.delayMs, recentGaps, recentLate, serverMs, silentMs });
    const word = isLive ? this.quality : STATES[numbers.state];
    const { short, quality } = this._parts;
    const hasDelay = isLive && numbers.mouthToEarMs !== null && word !== "No answer";
    write(short, hasDelay ? `${Math.round(numbers.mouthToEarMs ?? 0)} ms` : "");
    write(quality, hasDelay && (word === "Good" || word === "Fair") ? "Delay" : word);
    quality.dataset["quality"] = word;
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
