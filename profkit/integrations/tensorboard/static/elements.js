/** Elements of the tab. Text is set as text: no value of a recording is ever parsed as HTML. */
/* global profkit */

export const el = profkit.element;

export const quiet = (text) => el('p', { class: 'quiet' }, text);

export function button(text, onClick) {
  const created = el('button', { type: 'button' }, text);
  created.addEventListener('click', onClick);
  return created;
}

/** Return a section with a heading. */
export const block = (title, ...children) => el('section', {}, el('h2', {}, title), ...children);

/** Return an error, how to proceed, and a button if it makes sense to try again. */
export const failure = (answer, retry) => [
  el('p', { class: 'error', role: 'alert' }, answer.error), quiet(answer.hint),
  ...(answer.can_retry ? [button('Try again', retry)] : []),
];

/** Return a count with its noun: `1 finding`, `1,200 findings`. */
export const counted = (n, noun) => `${profkit.formatCount(n)} ${n === 1 ? noun : `${noun}s`}`;

/** Return a date and time in the reader's locale. */
export const dateTime = (ms) => new Date(ms).toLocaleString(undefined, {
  dateStyle: 'medium', timeStyle: 'short',
});

/**
 * Return a table as in the report: it sorts, searches and has pages.
 * @param {{caption: string, columns: {title: string, kind: string, about?: string}[],
 *   rows: (string|number|null)[][], sortedBy: number|null}} table kinds of columns as in the
 *   report; the rows are in the order of `sortedBy`, descending
 */
export function sortableTable({ caption, columns, rows, sortedBy }) {
  const figures = new Set(['ns', 'bytes', 'share', 'count', 'number']);
  const headings = columns.map(({ title, kind, about }) => el(
    'th', { scope: 'col', class: figures.has(kind) && 'figure', title: about || null }, title,
  ));
  const figure = el(
    'figure', { class: 'table' },
    el('figcaption', {}, el('h3', {}, caption), el('span', { class: 'rows', role: 'status' })),
    el(
      'div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
      el('table', {}, el('thead', {}, el('tr', {}, headings)), el('tbody')),
    ),
  );
  const kinds = columns.map(({ kind }) => kind);
  const data = { kinds, rows, sortedBy, ranges: [], hints: [], pageRows: 15 };
  return new profkit.SortableTable(figure, data).figure;
}
