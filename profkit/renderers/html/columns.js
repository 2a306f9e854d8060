'use strict';
/**
 * Whole numbers out of bytes, as _columns.py writes them.
 * @param {Uint8Array} bytes all columns, one behind the other
 * @param {{n: number[], widths: number[]}} packed how many numbers each has, and of how many bytes
 * @returns {Float64Array[]}
 */
profkit.columns = (bytes, { n, widths }) => {
  let at = 0;
  return n.map((count, column) => {
    const values = new Float64Array(count);
    for (let place = 0, scale = 1; place < widths[column]; place += 1, scale *= 256) {
      for (let i = 0; i < count; i += 1) values[i] += bytes[at + i] * scale;
      at += count;
    }
    return values;
  });
};
