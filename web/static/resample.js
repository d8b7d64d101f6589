/**
 * From one sample rate to another, as a stream: a windowed sinc, cut below the lower rate's limit. Pure.
 *
 * Band-limited interpolation after Julius O. Smith (https://ccrma.stanford.edu/~jos/resample/): one table of
 * the filter's right wing, read between its points. Positions are whole numbers over the output rate, so
 * nothing drifts however long the stream is, and the cut of the input into pieces changes no sample.
 *
 * Delay: the filter's half width, 0.7 ms when one of the rates is 24 kHz.
 */

const ZERO_CROSSINGS = 16;
const POINTS_PER_CROSSING = 256;
/** Side lobes 80 dB down, a transition of an eighth of the band. */
const KAISER_BETA = 8;
const ROLLOFF = 0.94;

/** One stream's resampler. */
export class Resampler {
  /**
   * @param {number} inRate Hz, whole
   * @param {number} outRate Hz, whole
   */
  constructor(inRate, outRate) {
    this.inRate = inRate;
    this.outRate = outRate;
    this._scale = Math.min(1, outRate / inRate) * ROLLOFF;
    this._half = Math.ceil(ZERO_CROSSINGS / this._scale);
    this._wing = inRate === outRate ? new Float32Array(0) : makeWing(this._scale);
    /** Input that is still needed; it starts with the silence before the stream. */
    this._kept = new Float32Array(this._half);
    /** Where in `_kept` the next output lies: a whole sample, and a remainder in parts of outRate. */
    this._whole = this._half;
    this._rest = 0;
  }

  /**
   * @param {Float32Array} samples the next input
   * @returns {Float32Array} all the output that it settles
   */
  feed(samples) {
    if (this.inRate === this.outRate) return samples.slice();
    const input = new Float32Array(this._kept.length + samples.length);
    input.set(this._kept);
    input.set(samples, this._kept.length);
    const step = Math.floor(this.inRate / this.outRate);
    const stepRest = this.inRate % this.outRate;
    const settled = input.length - this._half;
    const out = new Float32Array(Math.max(0, Math.ceil(((settled - this._whole) * this.outRate) / this.inRate) + 1));
    let count = 0;
    let whole = this._whole;
    let rest = this._rest;
    while (whole < settled) {
      out[count++] = this._at(input, whole, rest / this.outRate);
      whole += step;
      rest += stepRest;
      if (rest >= this.outRate) {
        rest -= this.outRate;
        whole += 1;
      }
    }
    const unneeded = Math.min(whole - this._half, input.length);
    this._kept = input.slice(unneeded);
    this._whole = whole - unneeded;
    this._rest = rest;
    return out.subarray(0, count);
  }

  /**
   * The filter's answer between two samples of the input.
   *
   * @param {Float32Array} input
   * @param {number} whole
   * @param {number} fraction
   */
  _at(input, whole, fraction) {
    const density = this._scale * POINTS_PER_CROSSING;
    return (
      this._wingSum(input, whole, -1, fraction * density, density) +
      this._wingSum(input, whole + 1, 1, (1 - fraction) * density, density)
    );
  }

  /**
   * One side of the filter: from `index` outwards, beginning `place` table points from its centre.
   *
   * @param {Float32Array} input
   * @param {number} index
   * @param {number} direction
   * @param {number} place
   * @param {number} density
   */
  _wingSum(input, index, direction, place, density) {
    const wing = this._wing;
    const last = wing.length - 1;
    let sum = 0;
    for (; place < last && index >= 0 && index < input.length; place += density, index += direction) {
      const point = Math.floor(place);
      const low = wing[point];
      sum += input[index] * (low + (place - point) * (wing[point + 1] - low));
    }
    return sum;
  }
}

/**
 * The right half of the filter, its gain folded in.
 *
 * @param {number} scale cutoff, as a fraction of the input's own limit
 */
function makeWing(scale) {
  const points = ZERO_CROSSINGS * POINTS_PER_CROSSING;
  const wing = new Float32Array(points + 1);
  for (let point = 0; point <= points; point++) {
    const x = point / POINTS_PER_CROSSING;
    const sinc = x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
    const window = bessel(KAISER_BETA * Math.sqrt(1 - (point / points) ** 2)) / bessel(KAISER_BETA);
    wing[point] = scale * sinc * window;
  }
  return wing;
}

/**
 * The modified Bessel function of order zero.
 *
 * @param {number} x
 */
function bessel(x) {
  let term = 1;
  let sum = 1;
  for (let k = 1; term > 1e-12 * sum; k++) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}
