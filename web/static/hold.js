/** Hold to talk: a button or a key that opens the microphone while it is held, and mutes it when it is let go. */

export const HOLD_KEY = "t";

export class Hold {
  /**
   * @param {HTMLButtonElement} button
   * @param {(isHeld: boolean) => void} onChange
   */
  constructor(button, onChange) {
    this._button = button;
    this._onChange = onChange;
    this.isHeld = false;
  }

  begin() {
    const button = this._button;
    button.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      button.setPointerCapture(event.pointerId); // a finger that slips off the button still holds it
      this.set(true);
    });
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) {
      button.addEventListener(name, () => this.set(false));
    }
    button.addEventListener("contextmenu", (event) => event.preventDefault()); // a long touch asks for a menu
    button.addEventListener("keydown", (event) => this._pressed(event, true));
    button.addEventListener("keyup", (event) => this._pressed(event, false));
    // A screen reader clicks and holds nothing: one click to talk, the next one to stop.
    button.addEventListener("click", (event) => event.detail === 0 && this.set(!this.isHeld));
    // The key is let go elsewhere, and no event of it comes here.
    addEventListener("blur", () => this.set(false));
  }

  /** @param {boolean} isHeld */
  set(isHeld) {
    if (isHeld === this.isHeld) return;
    this.isHeld = isHeld;
    this._button.setAttribute("aria-pressed", String(isHeld));
    this._onChange(isHeld);
  }

  /** @param {KeyboardEvent} event @param {boolean} isDown */
  _pressed(event, isDown) {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault(); // the click that would follow
    this.set(isDown);
  }
}
