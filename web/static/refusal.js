/** Why a server refuses a socket: a browser does not say, but the same address, asked without one, does. */

import { CLOSE } from "./protocol.js";

/**
 * @typedef {{ kind: "never", message: string }
 *   | { kind: "full" | "limited", message: string, retryAfterS: number }
 *   | { kind: "leaving" | "absent", retryAfterS: number }
 *   | { kind: "open" }} Refusal `never`: only a person can change it. `full`: every place is taken, a worker says.
 *   `limited`: this visitor has as many calls as one may have. `leaving`: the worker takes no more. `absent`: a proxy
 *   answers, and no worker. `open`: a socket would be taken now.
 */

/** A network that swallows everything must not keep us from trying again. */
const EXPLAIN_LIMIT_MS = 5000;
/** The delay where no Retry-After is given. */
export const UNSAID_RETRY_S = 10;

/**
 * Ask. Null without an answer, or with an unknown one.
 *
 * @param {string} url of the socket that did not open
 * @param {typeof fetch} ask
 * @returns {Promise<Refusal | null>}
 */
export async function explain(url, ask = fetch) {
  try {
    const response = await ask(url.replace(/^ws/, "http"), { signal: AbortSignal.timeout(EXPLAIN_LIMIT_MS) });
    return await judge(response);
  } catch {
    return null;
  }
}

/**
 * @param {Response} response
 * @returns {Promise<Refusal | null>}
 */
async function judge(response) {
  const { status } = response;
  const retryAfterS = Number(response.headers.get("Retry-After") ?? NaN);
  switch (status) {
    case 401:
      return { kind: "never", message: "This server asks for an access key: enter it above, or under Settings." };
    case 426: // ours, to whom nothing is wrong but that this was no WebSocket
      return { kind: "open" };
    case 429:
      return { kind: "limited", message: await words(response), retryAfterS: retryAfterS || UNSAID_RETRY_S };
    case 503:
      return retryAfterS ? await unavailable(response, retryAfterS) : null;
    default:
      return status >= 400 && status < 500 ? { kind: "never", message: await words(response) } : null;
  }
}

/**
 * A worker's own answer is JSON with the code it would have closed a socket with; a proxy's is not.
 *
 * @param {Response} response
 * @param {number} retryAfterS
 * @returns {Promise<Refusal | null>} null when a worker is there and cannot go on
 */
async function unavailable(response, retryAfterS) {
  if (!isJson(response)) return { kind: "absent", retryAfterS };
  const { error, code } = await response.json();
  switch (code) {
    case CLOSE.FULL:
      return { kind: "full", message: String(error), retryAfterS };
    case CLOSE.LEAVING:
      return { kind: "leaving", retryAfterS };
    default:
      return null;
  }
}

/** @param {Response} response */
function isJson(response) {
  return (response.headers.get("Content-Type") ?? "").startsWith("application/json");
}

/**
 * What it says, if it was written for people: a line, or JSON with an `error`.
 *
 * @param {Response} response
 */
async function words(response) {
  if (isJson(response)) return String((await response.json())["error"]);
  const isText = (response.headers.get("Content-Type") ?? "").startsWith("text/plain");
  return isText ? await response.text() : `the answer was ${response.status} ${response.statusText}`.trim();
}
