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
    const [gaps, spans, sites, nFurther, idleNs, longests] = profkit.columns(bytes, packed);
    const n = rows.reduce((sum, count) => sum + count, 0);
    const level = {
      resolutionNs,
      start: new Float64Array(n), end: new Float64Array(n),
      busy: new Float64Array(n), longest: new Float64Array(n),
      site: new Uint32Array(n), n: new Float64Array(n),
      first: new Uint32Array(rows.length + 1),
    };

    let i = 0;
    let merged = 0;
    rows.forEach((count, row) => {
      // Times are differences to the end before, and each row begins with the timeline.
      let at = startNs;
      for (const last = i + count; i < last; i += 1) {
        const span = spans[i];
        level.start[i] = at + gaps[i];
        at = level.start[i] + span;
        level.end[i] = at;
        level.site[i] = sites[i];
        level.n[i] = nFurther[i] + 1;
        level.busy[i] = span;
        level.longest[i] = span;
        if (nFurther[i] > 0) {
          level.busy[i] -= idleNs[merged];
          level.longest[i] = longests[merged];
          merged += 1;
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
      this.waiting = [];
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
      for (const resolve of this.waiting.splice(0)) resolve();
      this.onReady();
    }

    /** The finest level, decoded. */
    async finest() {
      while (!this.ready[0] && !this.failed) {
        const ready = new Promise((resolve) => { this.waiting.push(resolve); });
        this.load(0);
        await ready;
      }
      return this.ready[0];
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

  /** Return the first slice of a row that ends after a time; the end of the row if none does. */
  function firstAfter(level, row, ns) {
    return profkit.firstWhere(level.first[row], level.first[row + 1],
      (slice) => level.end[slice] > ns || level.start[slice] >= ns);
  }

  /** Return the slice of a row at a time, or the nearest within a distance; -1 for none. */
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

  /** Slices of some sites in some rows, in the order of time. */
  class Occurrences {
    /**
     * @param {Level} level
     * @param {number[]} rows
     * @param {Set<number>} sites
     */
    constructor(level, rows, sites) {
      const slices = [];
      this.level = level;
      this.rows = rows;
      this.first = [0];
      for (const row of rows) {
        for (let i = level.first[row]; i < level.first[row + 1]; i += 1) {
          if (sites.has(level.site[i])) slices.push(i);
        }
        this.first.push(slices.length);
      }
      this.slices = Uint32Array.from(slices);
      this.places = new Map(rows.map((row, place) => [row, place]));
    }

    get n() {
      return this.slices.length;
    }

    /** Return the first place of a row after a moment, or after a slice of that moment. */
    after(place, ns, slice) {
      const { level, slices } = this;
      return profkit.firstWhere(this.first[place], this.first[place + 1], (index) => {
        const at = level.start[slices[index]];
        return at > ns || (at === ns && slices[index] > slice);
      });
    }

    /** Return the next occurrence after a slice of a moment, or the last before it; null at the end. */
    next(ns, slice, isForward) {
      const { level, slices } = this;
      let best = null;
      this.rows.forEach((row, place) => {
        const at = isForward ? this.after(place, ns, slice) : this.after(place, ns, slice - 1) - 1;
        if (at < this.first[place] || at >= this.first[place + 1]) return;
        const index = slices[at];
        const order = best === null ? 1 : level.start[index] - level.start[best.index]
          || index - best.index;
        if (best === null || (isForward ? order < 0 : order > 0)) best = { row, index };
      });
      return best;
    }

    /** Return the number of an occurrence, from 1. */
    rank({ index }) {
      const ns = this.level.start[index];
      return this.rows.reduce(
        (sum, _, place) => sum + this.after(place, ns, index) - this.first[place], 0);
    }

    /** Return the first place in a row that ends after a moment, and the end of the row. */
    within(row, ns) {
      const place = this.places.get(row);
      if (place === undefined) return [0, 0];
      const at = this.after(place, ns, -1);
      const isOpen = at > this.first[place] && this.level.end[this.slices[at - 1]] > ns;
      return [isOpen ? at - 1 : at, this.first[place + 1]];
    }
  }

  /** Return the length of the union of some intervals, by a sweep over starts and ends. */
  function unionNs(starts, ends) {
    starts.sort();
    ends.sort();
    let [total, depth, begin] = [0, 0, 0];
    for (let i = 0, j = 0; j < ends.length;) {
      if (i < starts.length && starts[i] <= ends[j]) {
        if (depth === 0) begin = starts[i];
        depth += 1;
        i += 1;
      } else {
        depth -= 1;
        if (depth === 0) total += ends[j] - begin;
        j += 1;
      }
    }
    return total;
  }

  /**
   * Sum the parts of slices that are in some rows and within a time range.
   *
   * @param {Level} level
   * @param {number[]} rows
   * @returns events, their summed and their covered time, whether slices of several events are
   *   only in part in the range, and count, total and longest part by site; site -1 has the events
   *   of slices that merge several
   */
  function sums(level, rows, from, to) {
    const bySite = new Map();
    const sum = { n: 0, totalNs: 0, busyNs: 0, isAbout: false, bySite };
    let size = 0;
    const ranges = rows.map((row) => {
      const first = firstAfter(level, row, from);
      let last = first;
      while (last < level.first[row + 1] && level.start[last] < to) last += 1;
      size += last - first;
      return [first, last];
    });

    const [starts, ends] = [new Float64Array(size), new Float64Array(size)];
    let at = 0;
    for (const [first, last] of ranges) {
      for (let i = first; i < last; i += 1, at += 1) {
        const begin = Math.max(level.start[i], from);
        const span = Math.min(level.end[i], to) - begin;
        const length = level.end[i] - level.start[i];
        const isMerged = level.n[i] > 1;
        // Where the events of a slice are is not known: a part of it has that part of them.
        const isCut = isMerged && span < length;
        const part = isCut ? span / length : 1;
        const n = Math.round(level.n[i] * part);
        const ns = isMerged ? level.busy[i] * part : span;

        const site = isMerged ? -1 : level.site[i];
        const ofSite = bySite.get(site) ?? { n: 0, totalNs: 0, longestNs: 0 };
        bySite.set(site, ofSite);
        ofSite.n += n;
        ofSite.totalNs += ns;
        ofSite.longestNs = Math.max(ofSite.longestNs, isMerged ? level.longest[i] : span);
        sum.n += n;
        sum.totalNs += ns;
        sum.isAbout = sum.isAbout || isCut;
        starts[at] = begin;
        ends[at] = begin + ns;
      }
    }
    sum.busyNs = unionNs(starts, ends);
    return sum;
  }

  return { Levels, Occurrences, firstAfter, sliceAt, sums };
})();
