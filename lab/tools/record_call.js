// Records a call of the page: a recorded voice asks two questions. One file NUMBER.png in FOLDER for each picture.
// Usage: node lab/tools/record_call.js URL FOLDER PERIOD_MS WIDTH HEIGHT, with the surroundings of tests/support/node.py.
import { openBrowser, openPage } from "../../tests/web/browser/lib.js";

const [url = "", folder = ".", ...numbers] = process.argv.slice(2);
const [PERIOD_MS = 125, width = 900, height = 800] = numbers.map(Number);
const FIRST_MS = 1000;
const ANSWER_MS = 4500;

const browser = await openBrowser();
try {
  const { page } = await openPage(browser, url, { viewport: { width, height }, reducedMotion: "no-preference" });
  const questions = await page.locator("#chips .chip").allTextContents();
  let isOver = false;
  const recording = (async () => {
    const startMs = performance.now();
    for (let number = 0; !isOver; ) {
      await page.screenshot({ path: `${folder}/${String(number).padStart(4, "0")}.png` });
      // A picture that comes late leaves out the numbers before it: the times stay true.
      number = Math.max(number + 1, Math.ceil((performance.now() - startMs) / PERIOD_MS));
      await page.waitForTimeout(Math.max(0, number * PERIOD_MS - (performance.now() - startMs)));
    }
  })();
  await page.waitForTimeout(FIRST_MS);
  for (const question of [questions[0], questions[1]]) {
    await page.click(`.chip:text-is("${question}")`);
    await page.waitForTimeout(ANSWER_MS);
  }
  await page.click("#talk");
  await page.waitForTimeout(2 * FIRST_MS);
  isOver = true;
  await recording;
} finally {
  await browser.close();
}
