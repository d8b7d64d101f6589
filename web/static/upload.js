/** A form with a file on its way to the server, with its progress: `fetch` does not say how far it is. */

/** @typedef {{ status: number, isJson: boolean, text: string }} Answer */

/**
 * @param {string} url
 * @param {FormData} form
 * @param {string} key "" for none
 * @param {(share: number) => void} onProgress 0 to 1 while it is sent
 * @param {AbortSignal} signal ends it
 * @returns {Promise<Answer>}
 */
export function upload(url, form, key, onProgress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    if (key) request.setRequestHeader("Authorization", `Bearer ${key}`);
    request.upload.onprogress = ({ loaded, total }) => onProgress(total ? loaded / total : 0);
    request.upload.onload = () => onProgress(1);
    request.onload = () => {
      const isJson = (request.getResponseHeader("Content-Type") ?? "").startsWith("application/json");
      resolve({ status: request.status, isJson, text: request.responseText });
    };
    request.onerror = () => reject(new Error("the server does not answer"));
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}
