/** How loud samples are, for meters. Pure. */

/**
 * On the scale of a meter: 0 at -60 dB and below, 1 at full scale.
 *
 * @param {Float32Array} samples
 */
export function loudness(samples) {
  let energy = 0;
  for (const sample of samples) energy += sample * sample;
  const decibels = 10 * Math.log10(energy / Math.max(1, samples.length) + 1e-12);
  return Math.min(1, Math.max(0, 1 + decibels / 60));
}
