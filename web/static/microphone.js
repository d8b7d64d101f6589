/** The microphone: asked for with everything that keeps a reply from being heard twice, refused in one word. */

/** @typedef {"insecure" | "blocked" | "missing" | "busy" | "silent" | "unreachable" | "soundless" | "unknown"} Problem */

/** Why there is no microphone. */
export class MicrophoneError extends Error {
  /**
   * @param {Problem} problem
   * @param {string} detail the browser's own words
   */
  constructor(problem, detail) {
    super(detail);
    this.problem = problem;
  }
}

/**
 * @param {string} deviceId the one to use, "" for the system's choice
 * @returns {Promise<MediaStream>}
 */
export async function openMicrophone(deviceId) {
  // Browsers hide the microphone from pages that came without encryption, except from this machine.
  if (!navigator.mediaDevices?.getUserMedia) throw new MicrophoneError("insecure", "no secure context");
  const processing = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };
  try {
    const audio = deviceId ? { ...processing, deviceId: { ideal: deviceId } } : processing;
    return await navigator.mediaDevices.getUserMedia({ audio });
  } catch (error) {
    throw new MicrophoneError(problemOf(error), error instanceof Error ? error.message : String(error));
  }
}

/**
 * @param {unknown} error what getUserMedia threw
 * @returns {Problem}
 */
export function problemOf(error) {
  switch (error instanceof Error ? error.name : "") {
    case "NotAllowedError":
    case "SecurityError":
      return "blocked";
    case "NotFoundError":
    case "OverconstrainedError":
      return "missing";
    case "NotReadableError":
    case "AbortError":
      return "busy";
    default:
      return "unknown";
  }
}

/**
 * What a promise brings, or an error after a while.
 *
 * @template T
 * @param {number} ms
 * @param {Promise<T>} promise
 * @param {Problem} problem
 * @returns {Promise<T>}
 */
export function within(ms, promise, problem) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new MicrophoneError(problem, `nothing within ${ms} ms`)), ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** The microphones there are; without names until one was allowed. */
export async function listMicrophones() {
  const devices = (await navigator.mediaDevices?.enumerateDevices?.()) ?? [];
  return devices.filter((device) => device.kind === "audioinput" && device.deviceId);
}
