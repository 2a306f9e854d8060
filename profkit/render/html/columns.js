'use strict';
/** Whole numbers out of bytes, as _columns.py writes them. */
profkit.columns = (() => {
  const lowBits = 128;

  /** Reads numbers of seven bits a byte, the lowest first. */
  class Reader {
    constructor(bytes, from) {
      this.bytes = bytes;
      this.at = from;
    }

    next() {
      let byte = this.bytes[this.at];
      this.at += 1;
      if (byte < lowBits) return byte;
      let value = byte - lowBits;
      let scale = lowBits;
      do {
        byte = this.bytes[this.at];
        this.at += 1;
        value += (byte % lowBits) * scale;
        scale *= lowBits;
      } while (byte >= lowBits);
      return value;
    }

    /** So many numbers. */
    take(n) {
      return Float64Array.from({ length: n }, () => this.next());
    }
  }

  /**
   * A reader for each of some columns.
   * @param {Uint8Array} bytes all columns, one behind the other
   * @param {number[]} lengths how many bytes each has
   */
  return (bytes, lengths) => {
    let from = 0;
    return lengths.map((length) => {
      from += length;
      return new Reader(bytes, from - length);
    });
  };
})();
