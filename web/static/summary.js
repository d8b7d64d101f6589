/** A call in a line, once it is over; where it takes two, it breaks between facts. Pure. */

import { count, stopwatch } from "./words.js";

/**
 * @param {object} call
 * @param {number} call.seconds
 * @param {number} call.said words of the caller that were written down
 * @param {number} call.heard words of the reply
 * @param {string} call.name what the reply is called
 * @param {number | null} call.typicalMs from mouth to ear
 * @param {number} call.gaps in what was heard
 */
export function summaryOf({ seconds, said, heard, name, typicalMs, gaps }) {
  const words = [said ? `${count(said, "word")} from you` : "", heard ? `${count(heard, "word")} from ${name}` : ""];
  const facts = [
    `${stopwatch(seconds)} of talk`,
    ...words.filter(Boolean),
    typicalMs === null ? "" : `${Math.round(typicalMs)} ms from mouth to ear`,
    gaps ? count(gaps, "gap") : "no gaps",
  ];
  return facts.filter(Boolean).map(whole).join("\u00a0· ");
}

/** @param {string} fact */
function whole(fact) {
  return fact.replaceAll(" ", "\u00a0");
}
