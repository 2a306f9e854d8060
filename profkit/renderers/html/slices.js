'use strict';
/**
 * The slices of the timeline: decoding, levels of detail, lookup by time.
 *
 * @typedef {object} Level
 * @property {number} resolutionNs  shorter adjacent events are merged; 0 where none are
 * @property {boolean} isFinest     whether no other level has more slices
 * @property {Float64Array} start   nanoseconds, as end, busy and longest
 * @property {Float64Array} end
 * @property {Float64Array} busy    the part of it that events cover
 * @property {Float64Array} longest its longest event
 * @property {Uint32Array} site     index into the sites
 * @property {Float64Array} n       merged events
 * @property {Uint32Array} first    first slice of each row, and the end of the last row
 */
profkit.slices = (() => {
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

  /** All levels of a timeline, each decoded on first use. */
  class Levels {
    constructor({ levels, startNs }, onReady) {
      this.startNs = startNs;
      this.onReady = onReady;
      this.encoded = levels;
      this.ready = levels.map(() => null);
      this.failed = false;
      const last = levels.length - 1;
      if (levels[last].packed.plain) {
        this.decode(last, profkit.unbase64(levels[last].packed.text));
      } else {
        this.load(last);
      }
    }

    decode(index, bytes) {
      this.ready[index] = decoded(bytes, this.encoded[index], this.startNs);
      this.ready[index].isFinest = index === 0;
      this.encoded[index] = { resolutionNs: this.encoded[index].resolutionNs };
    }

    async load(index) {
      const { packed } = this.encoded[index];
      if (!packed || packed.isLoading) return;
      packed.isLoading = true;
      try {
        this.decode(index, await profkit.unpack(packed.text));
      } catch {
        this.failed = true;
      }
      this.onReady();
    }

    /**
     * The coarsest level that is exact to a pixel; a coarser one until that is decoded.
     * @param {number} pixelNs nanoseconds per pixel
     * @returns {Level | null}
     */
    at(pixelNs) {
      let index = this.encoded.length - 1;
      while (index > 0 && this.encoded[index].resolutionNs > pixelNs) index -= 1;
      if (!this.ready[index]) this.load(index);
      while (index < this.ready.length - 1 && !this.ready[index]) index += 1;
      return this.ready[index];
    }
  }

  /** The first slice of a row that ends after a time; the end of the row if none does. */
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

  /** The slice of a row at a time, or the nearest within a distance; -1 for none. */
  function sliceAt(level, row, ns, distanceNs) {
    let best = -1;
    let bestDistance = distanceNs;
    for (let i = firstAfter(level, row, ns - distanceNs); i < level.first[row + 1]; i += 1) {
      if (level.start[i] > ns + distanceNs) break;
      const distance = Math.max(0, level.start[i] - ns, ns - level.end[i]);
      if (distance < bestDistance || (distance === 0 && best < 0)) {
        best = i;
        bestDistance = distance;
      }
      if (distance === 0) break;
    }
    return best;
  }

  return { Levels, firstAfter, sliceAt };
})();
