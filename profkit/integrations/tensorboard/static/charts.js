/** Charts as SVG, each with its figures in a table beside it: bars of parts, and courses in time. */
/* global profkit */
import { el, plainTable, shown } from './elements.js';

const svgNamespace = 'http://www.w3.org/2000/svg';

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(svgNamespace, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const titled = (shape, text) => { shape.append(svg('title', {}, text)); return shape; };

/** The names of colours, as a list. */
function legend(series) {
  return el('ul', { class: 'legend' }, series.map((each) => el(
    'li', {}, el('span', { class: `key ${each.color}`, 'aria-hidden': 'true' }), each.name,
  )));
}

const asTable = (title, headings, rows) => el(
  'details', { class: 'figures' }, el('summary', {}, 'The same as a table'),
  plainTable(title, headings, rows),
);

/**
 * One bar of parts that add up to a whole.
 * @param {string} title What it is of.
 * @param {{name: string, value: number, share: number, color: string}[]} parts
 */
export function partsBar(title, parts) {
  const bar = svg('svg', {
    viewBox: '0 0 1000 28', preserveAspectRatio: 'none', class: 'bar', role: 'img',
    'aria-label': title,
  });
  let start = 0;
  for (const part of parts) {
    const text = `${part.name}: ${profkit.formatNs(part.value)}, ${profkit.formatShare(part.share)}`;
    bar.append(titled(svg('rect', {
      x: start * 1000, y: 0, width: part.share * 1000, height: 28, class: `fill ${part.color}`,
    }), text));
    start += part.share;
  }
  const rows = parts.map((part) => [
    el('span', {}, el('span', { class: `key ${part.color}`, 'aria-hidden': 'true' }), part.name),
    profkit.formatNs(part.value), profkit.formatShare(part.share),
  ]);
  return el('figure', {}, bar, plainTable(title, ['part', 'time', 'share'], rows));
}

/**
 * A column a step, of parts that stand on each other.
 * @param {string} title What it is of.
 * @param {{name: string, color: string}[]} series The parts, the lowest first.
 * @param {{name: string, values: number[]}[]} columns In the order of time.
 */
export function columnsChart(title, series, columns) {
  const total = (column) => column.values.reduce((sum, value) => sum + value, 0);
  const highest = Math.max(1, ...columns.map(total));
  const width = Math.max(columns.length, 1);
  const chart = svg('svg', {
    viewBox: `0 0 ${width * 20} 200`, preserveAspectRatio: 'none', class: 'columns-chart',
    role: 'img', 'aria-label': title,
  });
  chart.style.maxWidth = `min(60rem, ${width * 5}rem)`;
  columns.forEach((column, place) => {
    let top = 200;
    column.values.forEach((value, index) => {
      const height = (value / highest) * 196;
      top -= height;
      const text = `${shown(column.name)}: ${series[index].name} ${profkit.formatNs(value)}`;
      chart.append(titled(svg('rect', {
        x: place * 20 + 2, y: top, width: 16, height, class: `fill ${series[index].color}`,
      }), text));
    });
  });
  const rows = columns.map((column) => [shown(column.name), ...column.values.map(profkit.formatNs)]);
  return el(
    'figure', {}, legend(series), el('p', { class: 'quiet' }, `up to ${profkit.formatNs(highest)}`),
    chart, asTable(title, ['step', ...series.map((each) => each.name)], rows),
  );
}

/**
 * Courses over time, each a line of steps.
 * @param {string} title What they are of.
 * @param {{name: string, color: string, values: (number|null)[]}[]} series
 * @param {number[]} at Where each value is, ascending.
 * @param {(at: number) => string} spellAt
 */
export function coursesChart(title, series, at, spellAt) {
  const known = series.flatMap((each) => each.values.filter((value) => value !== null));
  const highest = Math.max(1, ...known);
  const [first, last] = [at[0] ?? 0, at[at.length - 1] ?? 1];
  const x = (value) => ((value - first) / Math.max(1, last - first)) * 1000;
  const y = (value) => 200 - (value / highest) * 196;
  const chart = svg('svg', {
    viewBox: '0 0 1000 202', preserveAspectRatio: 'none', class: 'courses', role: 'img',
    'aria-label': title,
  });
  for (const each of series) {
    let path = '';
    each.values.forEach((value, index) => {
      if (value === null) return;
      const [left, top] = [x(at[index]).toFixed(1), y(value).toFixed(1)];
      path += path === '' ? `M${left} ${top}` : `H${left}V${top}`;
    });
    chart.append(titled(svg('path', { d: path || 'M0 0', class: `line ${each.color}` }), each.name));
  }
  const rows = series.map((each) => {
    const values = each.values.filter((value) => value !== null);
    const [begin, end] = [values[0], values[values.length - 1]];
    const most = Math.max(...values);
    return [each.name, ...[begin, most, end].map((n) => (
      values.length ? profkit.formatBytes(n) : '–'
    ))];
  });
  return el(
    'figure', {}, legend(series), el('p', { class: 'quiet' }, `up to ${profkit.formatBytes(highest)}`),
    chart, el('div', { class: 'axis' }, el('span', {}, spellAt(first)), el('span', {}, spellAt(last))),
    asTable(title, ['', 'first', 'most', 'last'], rows),
  );
}
