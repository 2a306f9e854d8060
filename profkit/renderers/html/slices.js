'use strict';
/**
 * The slices of the timeline: numbers out of text, levels of detail, and what is where.
 *
 * @typedef {object} Level
 * @property {number} resolutionNs  below this neighbours are one slice; 0 where none are
 * @property {Float64Array} start   nanoseconds, as end, busy and longest
 * @property {Float64Array} end
 * @property {Float64Array} busy    how much of it events cover
 * @property {Float64Array} longest its longest event
 * @property {Uint32Array} site     place in the sites
 * @property {Float64Array} n       events in it
 * @property {Uint32Array} first    where each row begins, and where the last one ends
 */
profkit.slices = (() => {
  /** The bytes of a level, unpacked where they are packed. */
  async function bytesOf({ text, plain }) {
    return plain ? profkit.unbase64(text) : profkit.unpack(text);
  }

  /** @returns {Level} */
  function decoded(bytes, { rows, resolutionNs, packed }, startNs) {
    const [gaps, spans, sites, others, rests, longests] = profkit.columns(bytes, packed);
    const n = rows.reduce((sum, each) => sum + each, 0);
    const level = {
      resolutionNs,
      start: new Float64Array(n), end: new Float64Array(n),
      busy: new Float64Array(n), longest: new Float64Array(n),
      site: new Uint32Array(n), n: new Float64Array(n),
      first: new Uint32Array(rows.length + 1),
    };
    let i = 0;
    let several = 0;
    rows.forEach((count, row) => {
      let at = startNs;
      for (const last = i + count; i < last; i += 1) {
        const span = spans[i];
        level.start[i] = at + gaps[i];
        at = level.start[i] + span;
        level.end[i] = at;
        level.site[i] = sites[i];
        level.n[i] = others[i] + 1;
        level.busy[i] = span;
        level.longest[i] = span;
        if (others[i] > 0) {
          level.busy[i] -= rests[several];
          level.longest[i] = longests[several];
          several += 1;
        }
      }
      level.first[row + 1] = i;
    });
    return level;
  }

  /** All levels of a timeline, each unpacked when it is first needed. */
  class Levels {
    constructor({ levels, startNs }, onReady) {
      this.startNs = startNs;
      this.onReady = onReady;
      this.written = levels;
      this.ready = levels.map(() => null);
      this.failed = false;
      const last = levels.length - 1;
      if (levels[last].packed.plain) {
        this.keep(last, profkit.unbase64(levels[last].packed.text));
      } else {
        this.load(last);
      }
    }

    keep(place, bytes) {
      this.ready[place] = decoded(bytes, this.written[place], this.startNs);
      this.written[place] = { resolutionNs: this.written[place].resolutionNs };
    }

    async load(place) {
      const { packed } = this.written[place];
      if (!packed || packed.isLoading) return;
      packed.isLoading = true;
      try {
        this.keep(place, await bytesOf(packed));
      } catch {
        this.failed = true;
      }
      this.onReady();
    }

    /**
     * The coarsest level that shows all that can be seen, or the next coarser that is there yet.
     * @param {number} pixelNs how long a pixel is
     * @returns {Level | null}
     */
    at(pixelNs) {
      let place = this.written.length - 1;
      while (place > 0 && this.written[place].resolutionNs > pixelNs) place -= 1;
      if (!this.ready[place]) this.load(place);
      while (place < this.ready.length - 1 && !this.ready[place]) place += 1;
      return this.ready[place];
    }
  }

  /** The first slice of a row that ends after a moment; behind the row's last one if none does. */
  function firstAfter(level, row, ns) {
    let low = level.first[row];
    let high = level.first[row + 1];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (level.end[middle] <= ns && level.start[middle] < ns) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The slice of a row at a moment, or beside it by no more than a distance; -1 for none. */
  function sliceAt(level, row, ns, distanceNs) {
    let best = -1;
    let least = distanceNs;
    for (let i = firstAfter(level, row, ns - distanceNs); i < level.first[row + 1]; i += 1) {
      if (level.start[i] > ns + distanceNs) break;
      const away = Math.max(0, level.start[i] - ns, ns - level.end[i]);
      if (away < least || (away === 0 && best < 0)) {
        best = i;
        least = away;
      }
      if (away === 0) break;
    }
    return best;
  }

  return { Levels, firstAfter, sliceAt };
})();
