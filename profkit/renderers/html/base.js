'use strict';
/**
 * What the other scripts build on: the one global name `profkit`.
 *
 * Events on `window`:
 *   profkit:range  detail {startNs, endNs, label, timeline, from}  the timeline of the section with
 *                  this id shows this time range, and selects the finding that has this label there;
 *                  a button leads back to the element `from`
 *   profkit:span   detail {device, from, to, text} or null  the moments that are selected on the
 *                  memory chart of a device, by their index
 *   profkit:theme  detail {dark}  the colours or the screen's resolution changed: canvases redraw
 */
const profkit = (() => {
  const timeUnits = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];
  const sizeUnits = ['TiB', 'GiB', 'MiB', 'KiB', 'B'].map((unit, i) => [1024 ** (4 - i), unit]);
  const smallestShare = 0.001;

  /** Return a number with a fixed number of decimals, ties rounded to even as Python does. */
  function fixed(value, digits) {
    const text = value.toFixed(digits);
    const halves = Math.abs(value) * 2 ** (digits + 1);
    const isTie = Number.isInteger(halves) && halves % 2 === 1;
    if (!isTie || (text.charCodeAt(text.length - 1) - 48) % 2 === 0) return text;
    return (value * (1 - 1e-9)).toFixed(digits);
  }

  const withCommas = (text) => text.replace(/\B(?=(\d{3})+$)/g, ',');

  function threeDigits(value) {
    const magnitude = Math.abs(value);
    if (magnitude >= 99.95) return withCommas(fixed(value, 0));
    return fixed(value, magnitude >= 9.995 ? 1 : 2);
  }

  /** Return the largest unit, as its size and name, in which a value is at least one. */
  const unitFor = (value, units) => units.find(([size]) => Math.abs(value) >= size) ?? units.at(-1);

  function scaled(value, units) {
    const [size, unit] = unitFor(value, units);
    return `${size > 1 ? threeDigits(value / size) : fixed(value, 0)} ${unit}`;
  }

  // These equal the functions of profkit/units.py.
  /** Return nanoseconds as text: `1.50 ms`. */
  const formatNs = (ns) => scaled(ns, timeUnits);

  /** Return bytes as text in powers of 1024: `3.20 GiB`. */
  const formatBytes = (bytes) => scaled(bytes, sizeUnits);

  /** Return a share from 0 to 1 as a percentage: `12%`. */
  function formatShare(share) {
    if (share !== 0 && Math.abs(share) < smallestShare) return '<0.1%';
    const percent = share * 100;
    const isWhole = Math.abs(percent) >= 9.95 || percent === 0;
    return `${fixed(percent, isWhole ? 0 : 1)}%`;
  }

  /** Return an integer with commas: `12,400`. */
  const formatCount = (count) => withCommas(String(count));

  /** Return a number that may be a fraction: `2.50`, `<0.01`. */
  const formatNumber = (number) => (number > 0 && number < 0.005 ? '<0.01' : threeDigits(number));

  const parsed = new Map();
  const inflated = new Map();

  /** Return the data of a section, or null; it is parsed once and never changed. */
  function data(id) {
    if (!parsed.has(id)) {
      const holder = document.getElementById(`data-${id}`);
      parsed.set(id, holder === null ? null : JSON.parse(holder.textContent));
    }
    return parsed.get(id);
  }

  /** Return the data of a section, or null, also where it is compressed. */
  function storedData(id) {
    const stored = data(id);
    if (!stored?.gzip) return Promise.resolve(stored);
    if (!inflated.has(id)) {
      inflated.set(id, unpack(stored.gzip).then((bytes) => (
        JSON.parse(new TextDecoder().decode(bytes)))));
    }
    return inflated.get(id);
  }

  /**
   * Return an element. Text is never parsed as HTML. Attributes and children that are null, undefined or
   * false are left out; an attribute that is true is empty.
   */
  function element(tag, attributes = {}, ...children) {
    const isSet = (value) => value !== null && value !== undefined && value !== false;
    const created = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (isSet(value)) created.setAttribute(name, value === true ? '' : value);
    }
    created.append(...children.flat().filter(isSet));
    return created;
  }

  /** Return the value of a CSS custom property of the page, such as `--series-1`. */
  function color(property) {
    return getComputedStyle(document.documentElement).getPropertyValue(property).trim();
  }

  /** Make the timeline of a section show a time range. */
  function showRange(startNs, endNs, label, { timeline = 'timeline', from = null } = {}) {
    const detail = { startNs, endNs, label, timeline, from };
    window.dispatchEvent(new CustomEvent('profkit:range', { detail }));
  }

  /** Return the bytes of a base64 text. */
  function unbase64(text) {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
    return bytes;
  }

  /** Return the bytes of a base64 text of gzip. */
  async function unpack(text) {
    const stream = new Blob([unbase64(text)]).stream();
    const plain = stream.pipeThrough(new DecompressionStream('gzip'));
    return new Uint8Array(await new Response(plain).arrayBuffer());
  }

  /**
   * Return columns of integers out of bytes, as _packed_columns.py writes them.
   * @param {Uint8Array} bytes all columns, one after the other
   * @param {{n: number[], widths: number[]}} packed numbers in each column, and bytes per number
   * @returns {Float64Array[]}
   */
  function columns(bytes, { n, widths }) {
    // Byte planes: the lowest bytes of all numbers of a column, then the second lowest, and so on.
    let at = 0;
    return n.map((count, column) => {
      const values = new Float64Array(count);
      for (let plane = 0, scale = 1; plane < widths[column]; plane += 1, scale *= 256) {
        for (let i = 0; i < count; i += 1) values[i] += bytes[at + i] * scale;
        at += count;
      }
      return values;
    });
  }

  /** Return the columns of a packed text. */
  async function unpacked(packed) {
    return columns(packed.plain ? unbase64(packed.text) : await unpack(packed.text), packed);
  }

  /** Return the first index from which on a test holds, by binary search; `end` if it never does. */
  function firstWhere(begin, end, holds) {
    let [low, high] = [begin, end];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (holds(middle)) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** Open a folded section, and all that is closed around an element. */
  function reveal(target) {
    const fold = target.querySelector(':scope > details.fold');
    if (fold) fold.open = true;
    for (let details = target.closest('details'); details;
      details = details.parentElement.closest('details')) details.open = true;
  }

  /** Fill a list with the names of colours. */
  function showColors(list, labels) {
    list.replaceChildren(...[...labels].map(([label, name]) => element('li', {},
      element('i', { class: 'swatch', style: `--color: var(${name})` }), label)));
  }

  return {
    formatNs, formatBytes, formatShare, formatCount, formatNumber, timeUnits, sizeUnits, unitFor,
    data, storedData, element, color, showRange, showColors, unbase64, unpack, columns, unpacked,
    firstWhere, reveal,
  };
})();
