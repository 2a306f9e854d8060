'use strict';
/**
 * What every script of the page builds on: the one global name `profkit`.
 *
 * Events on `window`:
 *   profkit:range  detail {startNs, endNs, label}  the timeline shows this stretch
 *   profkit:theme  detail {dark}                   colours changed: what draws on its own draws anew
 */
const profkit = (() => {
  const timeSteps = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs']];
  const sizeSteps = [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']];
  const almostNothing = 0.001;

  /** A number with so many decimals, where two are as near to the even one, as Python writes it. */
  function fixed(value, digits) {
    const text = value.toFixed(digits);
    const halves = Math.abs(value) * 2 ** (digits + 1);
    const isTie = Number.isInteger(halves) && halves % 2 === 1;
    if (!isTie || (text.charCodeAt(text.length - 1) - 48) % 2 === 0) return text;
    return (value * (1 - 1e-9)).toFixed(digits);
  }

  /** Thousands separated by commas. */
  function separated(text) {
    return text.replace(/\B(?=(\d{3})+$)/g, ',');
  }

  function threeDigits(value) {
    const magnitude = Math.abs(value);
    if (magnitude >= 99.95) return separated(fixed(value, 0));
    return fixed(value, magnitude >= 9.995 ? 1 : 2);
  }

  function scaled(value, steps, smallest) {
    for (const [scale, unit] of steps) {
      if (Math.abs(value) >= scale) return `${threeDigits(value / scale)} ${unit}`;
    }
    return `${fixed(value, 0)} ${smallest}`;
  }

  /** Nanoseconds as text: `1.50 ms`. As profkit/units.py writes them, like all that follow. */
  const formatNs = (ns) => scaled(ns, timeSteps, 'ns');

  /** Bytes as text in powers of 1024: `3.20 GiB`. */
  const formatBytes = (bytes) => scaled(bytes, sizeSteps, 'B');

  /** A share from 0 to 1 as a percentage: `12%`. */
  function formatShare(share) {
    if (share !== 0 && Math.abs(share) < almostNothing) return '<0.1%';
    const percent = share * 100;
    const isWhole = Math.abs(percent) >= 9.95 || percent === 0;
    return `${fixed(percent, isWhole ? 0 : 1)}%`;
  }

  /** A whole number with thousands separated: `12,400`. */
  const formatCount = (count) => separated(String(count));

  /** A number that may be a fraction: `2.50`, `<0.01`. */
  const formatNumber = (number) => (number > 0 && number < 0.005 ? '<0.01' : threeDigits(number));

  const parsed = new Map();

  /** The data of a section, or null where the page has none. It is read once, and not changed. */
  function data(id) {
    if (!parsed.has(id)) {
      const element = document.getElementById(`data-${id}`);
      parsed.set(id, element === null ? null : JSON.parse(element.textContent));
    }
    return parsed.get(id);
  }

  /** An element with text in it; text is never read as HTML. */
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  /** The value of a custom property of the page, such as `--series-1`. */
  function color(property) {
    return getComputedStyle(document.documentElement).getPropertyValue(property).trim();
  }

  /** Ask the timeline to show a stretch of the recording. */
  function showRange(startNs, endNs, label) {
    const detail = { startNs, endNs, label };
    window.dispatchEvent(new CustomEvent('profkit:range', { detail }));
  }

  /** Bytes that a text holds as base64. */
  function unbase64(text) {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
    return bytes;
  }

  /** The bytes of what was packed with gzip and written as base64. */
  async function unpack(text) {
    const stream = new Blob([unbase64(text)]).stream();
    const plain = stream.pipeThrough(new DecompressionStream('gzip'));
    return new Uint8Array(await new Response(plain).arrayBuffer());
  }

  let plotlyReady = null;

  /** Plotly, unpacked when it is first asked for. */
  function plotly() {
    plotlyReady = plotlyReady ?? unpack(document.getElementById('plotly-packed').textContent)
      .then((bytes) => {
        const script = element('script');
        script.textContent = new TextDecoder().decode(bytes);
        document.head.append(script);
        return window.Plotly;
      });
    return plotlyReady;
  }

  return {
    formatNs, formatBytes, formatShare, formatCount, formatNumber,
    data, element, color, showRange, unbase64, unpack, plotly,
  };
})();
