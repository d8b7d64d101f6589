// Presses the questions of the page, each in a call of its own and all in one call: one JSON line for each answer.
// Usage: node lab/tools/press_questions.js URL ROUNDS, with the surroundings of tests/support/node.py.
import { inState, numbers, openBrowser, openPage } from "../../tests/web/browser/lib.js";

const [url = "", rounds = "4"] = process.argv.slice(2);
/** An answer is whole after so long without another word. */
const STILL_MS = 2500;

/** @param {import("playwright-core").Page} page */
const replies = (page) => page.locator("#transcript .reply > span:last-child").allTextContents();

/** Press a question, and wait for its whole answer. @param {import("playwright-core").Page} page @param {string} question */
async function ask(page, question) {
  const before = (await page.textContent("#transcript")) ?? "";
  await page.click(`.chip:text-is("${question}")`);
  await page.waitForFunction((old) => (document.querySelector("#transcript")?.textContent ?? "") !== old, before);
  await page.waitForSelector(`.chip[aria-disabled="false"]:text-is("${question}")`);
  const endMs = Date.now() + 20_000;
  for (let [last, sinceMs] = ["", Date.now()]; Date.now() - sinceMs < STILL_MS && Date.now() < endMs; ) {
    const now = (await page.textContent("#transcript")) ?? "";
    const isNew = now !== last || !now.split(question).at(-1)?.match(/\w+ \w+ \w+/);
    if (isNew) [last, sinceMs] = [now, Date.now()];
    await page.waitForTimeout(100);
  }
  const { late = 0, lost = 0 } = await numbers(page);
  return { question, answer: (await replies(page)).at(-1)?.trim() ?? "", late, lost };
}

/** @param {string} call @param {Record<string, unknown>} press */
const tell = (call, press) => process.stdout.write(`${JSON.stringify({ call, ...press })}\n`);

const browser = await openBrowser();
try {
  const { page } = await openPage(browser, url);
  const questions = await page.locator("#chips .chip").allTextContents();
  for (let round = 0; round < Number(rounds); round++) {
    for (const question of questions) {
      tell("of its own", await ask(page, question));
      await page.click("#talk");
      await inState(page, "ended");
      await page.reload(); // the recording is not asked about
      await page.waitForSelector("body[data-ready]");
    }
    for (const question of questions) {
      tell("one for all", await ask(page, question));
    }
    await page.click("#talk");
    await inState(page, "ended");
    await page.reload();
    await page.waitForSelector("body[data-ready]");
  }
} finally {
  await browser.close();
}
