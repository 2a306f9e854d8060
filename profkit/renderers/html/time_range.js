'use strict';
/** The visible range of a timeline. It stays within the recording, and moves at once or animated. */
profkit.TimeRange = (() => {
  const minSpanNs = 20;
  const animationMs = 180;
  const reducedMotion = window.matchMedia('(prefers-reduced-motion: reduce)');

  return class TimeRange {
    /**
     * @param {{from: number, to: number}} whole the recording, in nanoseconds
     * @param {() => void} onMove called after each movement
     */
    constructor(whole, onMove) {
      this.whole = whole;
      this.onMove = onMove;
      this.animation = null;
      this.set(whole.from, whole.to);
    }

    get span() {
      return this.to - this.from;
    }

    get middle() {
      return (this.from + this.to) / 2;
    }

    /** Whether movements are shown at once, as the reader wishes. */
    get isStill() {
      return reducedMotion.matches;
    }

    contains(ns) {
      return ns >= this.from && ns <= this.to;
    }

    set(from, to) {
      this.from = from;
      this.to = to;
    }

    /** Show a time range, limited to the recording; optionally animated. */
    show(from, to, animated = false) {
      const { whole } = this;
      const span = Math.min(Math.max(to - from, minSpanNs), whole.to - whole.from);
      const start = Math.min(Math.max(from - (span - (to - from)) / 2, whole.from), whole.to - span);

      // The latest movement replaces one that is still under way.
      cancelAnimationFrame(this.animation);
      if (animated && !this.isStill) {
        this.animate({ from: start, to: start + span });
        return;
      }
      this.set(start, start + span);
      this.onMove();
    }

    showAll() {
      this.show(this.whole.from, this.whole.to, true);
    }

    animate(target) {
      const { from, to } = this;
      const startMs = performance.now();
      const advance = (nowMs) => {
        const share = Math.min(1, Math.max(0, nowMs - startMs) / animationMs);
        // Cubic ease-out: fast at first, so that the page reacts at once.
        const eased = 1 - (1 - share) ** 3;
        this.set(from + (target.from - from) * eased, to + (target.to - to) * eased);
        this.onMove();
        if (share < 1) this.animation = requestAnimationFrame(advance);
      };
      this.animation = requestAnimationFrame(advance);
    }

    /** Zoom around a time; a factor below 1 zooms in. */
    zoom(factor, around = this.middle, animated = false) {
      this.show(
        around - (around - this.from) * factor, around + (this.to - around) * factor, animated);
    }

    /** Move by a multiple of the visible range. */
    pan(share) {
      const by = this.span * share;
      this.show(this.from + by, this.to + by);
    }
  };
})();
