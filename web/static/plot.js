/** A line of numbers over the last minute, with what went wrong marked. */

const NICE_MS = [100, 200, 300, 400, 500, 750, 1000, 1500, 2000, 3000, 5000, 10_000];
const BOTTOM_PX = 4;

/**
 * The top of the scale: a round number that no value passes.
 *
 * @param {(number | null)[]} values
 */
export function scaleTop(values) {
  const most = Math.max(0, ...values.map((value) => value ?? 0));
  return NICE_MS.find((top) => top >= most * 1.1) ?? Math.ceil(most / 1000) * 1000;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {import("./latency.js").History} history
 */
export function drawPlot(canvas, history) {
  const context = canvas.getContext("2d");
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!context || !width) return;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  const style = getComputedStyle(canvas);
  const colour = /** @param {string} name */ (name) => style.getPropertyValue(name);
  const top = scaleTop(history.points.map((point) => point.value));
  const yOf = /** @param {number} value */ (value) => 8 + (height - 8 - BOTTOM_PX) * (1 - value / top);
  context.font = `12px ${style.fontFamily}`;
  const left = 8 + Math.ceil(context.measureText(String(Math.max(top, 1000))).width);
  const stepPx = (width - left) / (history.size - 1);
  const xOf = /** @param {number} index */ (index) => width - (history.points.length - 1 - index) * stepPx;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(yOf(part * top)) + 0.5;
    context.strokeStyle = colour("--line");
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(width, y);
    context.stroke();
    context.fillStyle = colour("--quiet");
    context.fillText(String(part * top), left - 8, y - (part === 0 ? 4 : 0));
  }
  context.fillStyle = colour("--trouble");
  history.points.forEach((point, index) => {
    if (point.isMarked) context.fillRect(xOf(index) - 1, 8, 2, height - 8 - BOTTOM_PX);
  });
  context.strokeStyle = colour("--you");
  context.lineWidth = 2;
  context.lineJoin = "round";
  context.beginPath();
  let isDrawing = false;
  history.points.forEach(({ value }, index) => {
    if (value !== null) context[isDrawing ? "lineTo" : "moveTo"](xOf(index), yOf(value));
    isDrawing = value !== null;
  });
  context.stroke();
}
