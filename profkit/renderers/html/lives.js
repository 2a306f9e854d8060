'use strict';
/**
 * Blocks by what they belong to and by the moments between which they were live.
 * @param packed what _packed_columns.py writes of them
 * @param {number} nGroups
 * @returns a function from two moments, by their index, to the number and the bytes of the blocks of
 *   each group that were live at some time from one to the other
 */
profkit.lives = async (packed, nGroups) => {
  const [group, first, length, n, bytes] = await profkit.unpacked(packed);
  return (from, to) => {
    const sums = { n: new Float64Array(nGroups), bytes: new Float64Array(nGroups) };
    for (let row = 0; row < group.length; row += 1) {
      if (first[row] <= to && first[row] + length[row] > from) {
        sums.n[group[row]] += n[row];
        sums.bytes[group[row]] += bytes[row];
      }
    }
    return sums;
  };
};

/** Select moments of a device's memory; null selects none. */
profkit.showSpan = (detail) => window.dispatchEvent(new CustomEvent('profkit:span', { detail }));
