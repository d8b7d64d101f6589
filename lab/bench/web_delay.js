// Watches a call in a browser: one JSON line about it a second, as long as it is told to.
// Usage: node lab/bench/web_delay.js URL SECONDS FORMAT, with the surroundings of tests/support/node.py.
import { call, numbers, openBrowser, openPage } from "../../tests/web/browser/lib.js";

const [url = "", seconds = "10", format = "opus"] = process.argv.slice(2);

/** @param {Record<string, unknown>} values */
const tell = (values) => process.stdout.write(`${JSON.stringify(values)}\n`);

/**
 * What a browser remembers of an earlier visit.
 *
 * @param {string} origin
 * @param {Record<string, string>} settings
 */
function keptSettings(origin, settings) {
  const localStorage = [{ name: "antiphon.settings", value: JSON.stringify(settings) }];
  return { cookies: [], origins: [{ origin, localStorage }] };
}

const HEAP_EVERY_S = 30;

/**
 * What the page keeps alive, once everything else was collected.
 *
 * @param {import("playwright-core").CDPSession} inspector
 */
async function kept(inspector) {
  await inspector.send("HeapProfiler.collectGarbage");
  const { metrics } = await inspector.send("Performance.getMetrics");
  const value = (/** @type {string} */ name) => metrics.find((it) => it.name === name)?.value;
  return { heap_bytes: value("JSHeapUsedSize"), nodes: value("Nodes"), listeners: value("JSEventListeners") };
}

const browser = await openBrowser();
try {
  const visitMs = Date.now();
  const { page } = await openPage(browser, url, { storageState: keptSettings(url, { format }) });
  const inspector = await page.context().newCDPSession(page);
  await inspector.send("Performance.enable");
  await call(page);
  // Looked at in the page, at each of its pictures: a short sound between two questions from here would be missed.
  await page.waitForFunction(() => {
    const level = document.getElementById("level-reply");
    return level !== null && Number(level.style.getPropertyValue("--level")) > 0.3;
  });
  tell({ first_sound_ms: Date.now() - visitMs });
  const startMs = Date.now();
  for (let second = 1; second <= Number(seconds); second++) {
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, startMs + second * 1000 - Date.now())));
    const heap = second % HEAP_EVERY_S === 0 || second === Number(seconds) ? await kept(inspector) : {};
    tell({ at_s: (Date.now() - startMs) / 1000, state: await page.getAttribute("body", "data-state"), ...(await numbers(page)), ...heap });
  }
} finally {
  await browser.close();
}
