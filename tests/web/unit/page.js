// A page made of nothing: of every element what a view touches.

/** @type {any} */
export const world = globalThis;

class Part extends EventTarget {
  /** @type {any} */
  style = { setProperty() {} };
  /** @type {any} */
  dataset = {};
  textContent = "";
  value = "";
  src = "";
  hidden = false;
  classList = { toggle() {} };
  firstElementChild = { removeAttribute() {} };
  /** @type {Part[]} */
  children = [];
  /** @param {...Part} parts */
  append(...parts) {
    this.children.push(...parts);
  }
  replaceChildren() {}
  querySelectorAll = () => [];
  getAttribute() {
    return null;
  }
  setAttribute() {}
  removeAttribute() {}
  focus() {}
  pause() {}
}

const KINDS = ["", "Button", "Input", "Audio", "Span", "Canvas", "Details", "Dialog", "TextArea", "Select"];
for (const kind of KINDS) world[`HTML${kind}Element`] = Part;

/** @type {Map<string, Part>} */
const parts = new Map();
world.document = Object.assign(new EventTarget(), {
  body: new Part(),
  baseURI: "http://localhost/",
  createElement: () => new Part(),
  getElementById: (/** @type {string} */ id) => parts.get(id) ?? (parts.set(id, new Part()), parts.get(id)),
});
world.location = { host: "localhost", href: "http://localhost/" };
world.addEventListener = () => {};
world.matchMedia = () => new EventTarget();
world.ResizeObserver = class {
  observe() {}
};

/** @param {string} id @returns {any} */
export const element = (id) => world.document.getElementById(id);

/** @param {unknown} mediaDevices */
export function pretendDevices(mediaDevices) {
  Object.defineProperty(world, "navigator", { value: { mediaDevices }, configurable: true });
}

/** What a test fulfils when it pleases. */
export function promised() {
  /** @type {(value: any) => void} */
  let keep = () => {};
  /** @type {(error: Error) => void} */
  let refuse = () => {};
  const promise = new Promise((resolve, reject) => {
    keep = resolve;
    refuse = reject;
  });
  return { promise, keep, refuse };
}
