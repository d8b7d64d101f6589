/** Why a server refuses a socket: a browser does not say, but the same address, asked without one, does. */

/**
 * @typedef {{ kind: "never", message: string }
 *   | { kind: "full" | "limited", message: string, retryAfterS: number }
 *   | { kind: "blocked" }} Refusal `never`: only a person can change it. `full`: every place is taken. `limited`:
 *   this visitor has as many calls as one may have. `blocked`: it does not refuse, something on the way does.
 */

/** A network that swallows everything must not keep us from trying again. */
const EXPLAIN_LIMIT_MS = 5000;
/** Where nobody says when to come again. */
export const UNSAID_RETRY_S = 10;

/**
 * Ask. Null when nobody answers, or nobody who knows.
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
      return { kind: "never", message: "This server asks for an access key: enter it under Settings." };
    case 426: // ours, to whom nothing is wrong but that this was no WebSocket
      return { kind: "blocked" };
    case 429:
      return { kind: "limited", message: await words(response), retryAfterS: retryAfterS || UNSAID_RETRY_S };
    case 503:
      return retryAfterS ? { kind: "full", message: await words(response), retryAfterS } : null;
    default:
      return status >= 400 && status < 500 ? { kind: "never", message: await words(response) } : null;
  }
}

/**
 * What it says, if it was written for people: a line, or JSON with an `error`.
 *
 * @param {Response} response
 */
async function words(response) {
  const type = response.headers.get("Content-Type") ?? "";
  const text = await response.text();
  if (type.startsWith("application/json")) return String(JSON.parse(text)["error"]);
  return type.startsWith("text/plain") ? text : `the answer was ${response.status} ${response.statusText}`.trim();
}
