/** Words with their times, as lines: to be read, to be copied, and as files of text and subtitles. Pure. */

/** @typedef {{ text: string, startS: number, stopS: number | null }} Word */

/** A pause so long begins a line; one so long is shown. */
const BREAK_S = 0.6;
const PAUSE_S = 1;
/** What fits under a picture. */
const LONGEST_LINE = 64;
/** What is read before it is old. */
const LONGEST_S = 7;
/** Of a word without an end. */
const WORD_S = 0.4;

/**
 * Words in lines: a new one after a pause, and where one is full or lasts too long.
 *
 * @param {Word[]} words in the order of their beginnings
 * @returns {Word[][]}
 */
export function lines(words) {
  /** @type {Word[][]} */
  const found = [];
  for (const word of words) {
    const line = found.at(-1);
    const last = line?.at(-1);
    const isFull = line && textOf(line).length + word.text.length >= LONGEST_LINE;
    const isOld = line && endOf(word) - (line[0]?.startS ?? 0) > LONGEST_S;
    if (!line || !last || isFull || isOld || word.startS - endOf(last) > BREAK_S) found.push([word]);
    else line.push(word);
  }
  return found;
}

/**
 * The silence before a line, in seconds.
 *
 * @param {Word[] | undefined} previous the line before it
 * @param {Word[]} line
 * @returns {number | null} null where a line only went on
 */
export function pauseBefore(previous, line) {
  const last = previous?.at(-1);
  const silentS = last && line[0] ? line[0].startS - endOf(last) : 0;
  return silentS > PAUSE_S ? silentS : null;
}

/** @param {Word[]} line */
export function textOf(line) {
  return line.map((word) => word.text.trim()).join(" ");
}

/** @param {Word} word */
export function endOf(word) {
  return word.stopS ?? word.startS + WORD_S;
}

/** @param {Word[]} words */
export function asText(words) {
  return lines(words).map((line) => `${textOf(line)}\n`).join("");
}

/** Subtitles in the form of SubRip. @param {Word[]} words */
export function asSrt(words) {
  const blocks = lines(words).map((line, index) => {
    const last = /** @type {Word} */ (line.at(-1));
    return `${index + 1}\n${srtTime(line[0]?.startS ?? 0)} --> ${srtTime(endOf(last))}\n${textOf(line)}\n`;
  });
  return blocks.join("\n");
}

/** @param {number} seconds */
function srtTime(seconds) {
  const ms = Math.max(0, Math.round(1000 * seconds));
  const two = /** @param {number} value */ (value) => String(value).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(ms / 3_600_000), Math.floor(ms / 60_000) % 60, Math.floor(ms / 1000) % 60];
  return `${two(hours)}:${two(minutes)}:${two(rest)},${String(ms % 1000).padStart(3, "0")}`;
}
