'use strict';
/** Keys that move a time range for as long as they are held. */
profkit.HeldKeys = (() => {
  /** What a held key does in a second: the range that it moves by, and how it scales it. */
  const movements = {
    w: { zoom: 0.12 }, s: { zoom: 1 / 0.12 }, a: { pan: -1.1 }, d: { pan: 1.1 },
  };
  const firstS = 0.08;
  const stillS = 0.15;
  const maxFrameS = 0.05;

  return class HeldKeys {
    /**
     * @param {TimeRange} range
     * @param {() => number | undefined} center returns the time to zoom around, if there is one
     */
    constructor(range, center) {
      this.range = range;
      this.center = center;
      this.held = new Set();
      this.movedMs = 0;
      document.addEventListener('keyup', ({ key }) => this.held.delete(key.toLowerCase()));
      window.addEventListener('blur', () => this.release());
    }

    /** Whether a key moves the range. */
    has(key) {
      return key in movements;
    }

    /** Move no further. */
    release() {
      this.held.clear();
    }

    /** Move at once, then further while the key is held. */
    press(key, isRepeated) {
      if (this.range.isStill) this.move(key, stillS);
      else if (!isRepeated && !this.held.has(key)) {
        this.move(key, firstS);
        this.held.add(key);
        this.movedMs = performance.now();
        if (this.held.size === 1) requestAnimationFrame((nowMs) => this.advance(nowMs));
      }
    }

    /** Move by what the held keys do in the time since the last frame. */
    advance(nowMs) {
      if (!this.held.size) return;
      const seconds = Math.min(maxFrameS, Math.max(0, nowMs - this.movedMs) / 1000);
      this.movedMs = nowMs;
      for (const key of this.held) this.move(key, seconds);
      requestAnimationFrame((nextMs) => this.advance(nextMs));
    }

    move(key, seconds) {
      const { zoom, pan } = movements[key];
      if (pan) this.range.pan(pan * seconds);
      else this.range.zoom(zoom ** seconds, this.center());
    }
  };
})();
