// Presses the page's button again and again; one JSON line for each format: milliseconds until the reply is heard.
// Usage: node lab/bench/first_sound.js URL PRESSES FORMAT..., with the surroundings of tests/support/node.py.
import { inState, openBrowser, openPage } from "../../tests/web/browser/lib.js";

const [url = "", presses = "10", ...formats] = process.argv.slice(2);

/** In the page: milliseconds from the press of the button to a loud reply. @returns {Promise<number>} */
function press() {
  return new Promise((resolve) => {
    const pressedMs = performance.now();
    document.getElementById("talk")?.click();
    const look = () => {
      const level = Number(document.getElementById("level-reply")?.style.getPropertyValue("--level"));
      if (level > 0.3) resolve(performance.now() - pressedMs);
      else requestAnimationFrame(look);
    };
    look();
  });
}

const browser = await openBrowser("--autoplay-policy=no-user-gesture-required");
try {
  for (const format of formats) {
    const localStorage = [{ name: "antiphon.settings", value: JSON.stringify({ format }) }];
    const times = [];
    for (let count = 0; count < Number(presses); count++) {
      const storageState = { cookies: [], origins: [{ origin: url, localStorage }] };
      const { page, close } = await openPage(browser, url, { storageState });
      times.push(await page.evaluate(press));
      await page.click("#talk");
      await inState(page, "ended");
      await close();
    }
    process.stdout.write(`${JSON.stringify({ format, times })}\n`);
  }
} finally {
  await browser.close();
}
