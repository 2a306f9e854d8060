/** A table that sorts and searches; long ones show a page at a time. */
/* global profkit */
import { button, el, shown } from './elements.js';

const spelled = {
  ns: profkit.formatNs,
  bytes: profkit.formatBytes,
  share: profkit.formatShare,
  count: profkit.formatCount,
  number: profkit.formatNumber,
  text: shown,
};
const pageLength = 100;

/** The order of two values; what is not known comes last in either direction. */
function compare(one, other, direction) {
  const missing = (value) => value === null || value === undefined;
  if (missing(one) || missing(other)) return missing(one) - missing(other);
  if (typeof one === 'number') return direction * (one - other);
  return direction * String(one).localeCompare(String(other));
}

/**
 * Build a table.
 * @param {string} title What it lists.
 * @param {{key: string, title: string, unit: string, hint?: string}[]} columns
 * @param {object[]} rows Values by key; null where one is not known.
 * @param {string} sortedBy The key by which it is sorted at first, the largest value first.
 */
export function table(title, columns, rows, sortedBy) {
  const state = { key: sortedBy, direction: -1, text: '', page: 0 };
  const texts = rows.map((row) => columns
    .filter((column) => column.unit === 'text')
    .map((column) => shown(row[column.key] ?? '')).join('\n').toLowerCase());
  const body = el('tbody');
  const status = el('p', { class: 'quiet', role: 'status' });
  const pages = el('div', { class: 'pages' });
  const headings = columns.map((column) => heading(column));

  function heading(column) {
    const sort = button(column.title, () => {
      const isSame = state.key === column.key;
      state.direction = isSame ? -state.direction : (column.unit === 'text' ? 1 : -1);
      state.key = column.key;
      state.page = 0;
      draw();
    }, { title: column.hint ?? null });
    return el('th', { scope: 'col', class: column.unit }, sort);
  }

  function matching() {
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const places = rows.map((_, index) => index)
      .filter((index) => words.every((word) => texts[index].includes(word)));
    return places.sort((a, b) => (
      compare(rows[a][state.key], rows[b][state.key], state.direction) || a - b
    ));
  }

  function cell(row, column, isFirst) {
    const value = row[column.key];
    const text = value === null || value === undefined ? '–' : spelled[column.unit](value);
    return el(
      isFirst ? 'th' : 'td',
      { class: column.unit, scope: isFirst ? 'row' : null, title: isFirst ? text : null }, text,
    );
  }

  function draw() {
    const found = matching();
    const first = state.page * pageLength;
    const here = found.slice(first, first + pageLength);
    body.replaceChildren(...here.map((index) => el(
      'tr', {}, columns.map((column, place) => cell(rows[index], column, place === 0)),
    )));
    columns.forEach((column, index) => {
      const order = state.direction > 0 ? 'ascending' : 'descending';
      headings[index].setAttribute('aria-sort', column.key === state.key ? order : 'none');
    });
    const all = profkit.formatCount(rows.length);
    status.textContent = state.text
      ? `${profkit.formatCount(found.length)} of ${all}` : `${all} in all`;
    const turn = (by) => () => { state.page += by; draw(); };
    pages.replaceChildren(...(found.length <= pageLength ? [] : [
      button('Previous', turn(-1), { disabled: state.page === 0 }),
      el('span', {}, `${first + 1}–${first + here.length}`),
      button('Next', turn(1), { disabled: first + pageLength >= found.length }),
    ]));
  }

  const search = el('input', {
    type: 'search', placeholder: 'Search', 'aria-label': `Search ${title}`,
  });
  search.addEventListener('input', () => {
    state.text = search.value;
    state.page = 0;
    draw();
  });
  draw();
  return el(
    'div', { class: 'table' },
    el('div', { class: 'above' }, search, status, pages),
    el(
      'div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': title },
      el(
        'table', {}, el('caption', { class: 'hidden' }, title),
        el('thead', {}, el('tr', {}, headings)), body,
      ),
    ),
  );
}
