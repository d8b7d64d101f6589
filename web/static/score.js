/**
 * Two voices on one beat: a picture of the last seconds, you above the line, the reply below it.
 *
 * With reduced motion asked for, nothing scrolls: only the bars at the right, which are now, move.
 */

const BAR_PX = 3;
const STEP_PX = 6;
const BLOCKS_PER_BAR = 3;
const BAR_MS = 20 * BLOCKS_PER_BAR;
/** Without another bar for so long nothing moves. */
const STILL_MS = 4 * BAR_MS;
/** Wider than any screen. */
const MOST_BARS = 1000;

/** The picture on its canvas. */
export class Score {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this._canvas = canvas;
    /** @type {[number, number][]} */
    this._bars = [];
    /** @type {[number, number]} */
    this._loudest = [0, 0];
    this._blocks = 0;
    this._isDue = false;
    this._barMs = 0;
    /** The colours of both sides, read once for each theme. @type {[string, string] | null} */
    this._colours = null;
    this._stillness = matchMedia("(prefers-reduced-motion: reduce)");
    new ResizeObserver(() => this.draw()).observe(canvas);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
      matchMedia(query).addEventListener("change", () => {
        this._colours = null;
        this.draw();
      });
    }
  }

  clear() {
    this._bars = [];
    this.draw();
  }

  /**
   * @param {number} said 0 to 1
   * @param {number} heard 0 to 1
   */
  push(said, heard) {
    this._loudest = [Math.max(this._loudest[0], said), Math.max(this._loudest[1], heard)];
    this._blocks += 1;
    if (this._blocks % BLOCKS_PER_BAR) return;
    this._bars.push(this._loudest);
    if (this._bars.length > MOST_BARS) this._bars.shift();
    this._loudest = [0, 0];
    this._barMs = performance.now();
    this._ask();
  }

  /** Draw the next frame of the screen. */
  _ask() {
    if (this._isDue) return;
    this._isDue = true;
    requestAnimationFrame(() => this.draw());
  }

  /** How far the newest bar has come in, 0 to 1: between two bars the picture slides. */
  get _slide() {
    const sinceMs = performance.now() - this._barMs;
    if (this._stillness.matches || sinceMs > STILL_MS) return 1;
    this._ask();
    return Math.min(1, sinceMs / BAR_MS);
  }

  draw() {
    this._isDue = false;
    const canvas = this._canvas;
    const scale = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    const context = canvas.getContext("2d");
    if (!context || !width) return;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    if (!this._colours) {
      const style = getComputedStyle(canvas);
      this._colours = [style.getPropertyValue("--you"), style.getPropertyValue("--reply")];
    }
    const colours = this._colours;
    const offset = STEP_PX * (1 - this._slide);
    const count = Math.floor((width + STEP_PX - BAR_PX) / STEP_PX);
    const room = height / 2 - 3;
    for (let index = 0; index < count; index++) {
      const bar = this._stillness.matches && index > 0 ? undefined : this._bars[this._bars.length - 1 - index];
      const x = width - BAR_PX - index * STEP_PX + offset;
      const fade = Math.min(1, (count - index) / (0.35 * count));
      for (const side of /** @type {const} */ ([0, 1])) {
        const level = bar?.[side] ?? 0;
        const isSketch = this._bars.length === 0;
        const size = Math.max(2, room * (isSketch ? sketch(count - index, side) : level ** 2.2));
        context.globalAlpha = (isSketch ? 0.22 : level > 0.05 ? 1 : 0.28) * fade;
        context.fillStyle = colours[side] ?? "";
        context.beginPath();
        context.roundRect(x, side === 0 ? height / 2 - 2 - size : height / 2 + 2, BAR_PX, size, BAR_PX / 2);
        context.fill();
      }
    }
    context.globalAlpha = 1;
  }
}

/**
 * What stands there before the first word: one voice, and the other one answers.
 *
 * @param {number} bar from the left
 * @param {0 | 1} side
 */
function sketch(bar, side) {
  const phrase = 26;
  const isMine = Math.floor(bar / phrase) % 2 === side;
  const place = (bar % phrase) / phrase;
  const syllable = 0.55 + 0.45 * Math.sin(bar * 1.9 + side) * Math.sin(bar * 0.7);
  return isMine ? 0.8 * Math.sin(Math.PI * place) ** 0.8 * syllable : 0;
}
