/** Small pieces of the page. Text is set as text: no value of a recording is ever read as HTML. */
/* global profkit */

const invisible = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** A text without characters that are not seen or that change the direction of others. */
export function shown(text) {
  return String(text).replace(invisible, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** An element; attributes that are null or false are left out, true ones are empty. */
export function el(tag, attributes = {}, ...children) {
  const kept = Object.entries(attributes)
    .filter(([, value]) => value !== null && value !== undefined && value !== false)
    .map(([name, value]) => [name, value === true ? '' : value]);
  const given = children.flat().filter((child) => child !== null && child !== undefined);
  return profkit.element(tag, Object.fromEntries(kept), ...given);
}

/** A button that does something. */
export function button(text, onClick, attributes = {}) {
  const made = el('button', { type: 'button', ...attributes }, text);
  made.addEventListener('click', onClick);
  return made;
}

/** A heading and what it is of. */
export function block(title, ...children) {
  return el('section', { class: 'block' }, el('h3', {}, title), ...children);
}

export const quiet = (text) => el('p', { class: 'quiet' }, text);

/** A text in which `code` stands between backticks. */
export const prose = (text) => shown(text).split('`').map((part, index) => (
  index % 2 === 1 ? el('code', {}, part) : part
));

/** How many there are of something: `1 warning`, `1,200 warnings`. */
export const counted = (n, one) => `${profkit.formatCount(n)} ${n === 1 ? one : `${one}s`}`;

/** `train.py:12 in step`, or null where no line is known. */
export function place(location) {
  if (!location || !location.file || !location.line) return null;
  const name = location.file.replaceAll('\\', '/').split('/').pop();
  const inside = location.function ? ` in ${location.function}` : '';
  return shown(`${name}:${location.line}${inside}`);
}

/** Where a finding is, in as many words as are known. */
export function whereabouts(location) {
  const words = [place(location), location.op, location.module, location.step];
  return words.filter(Boolean).map(shown).join(' · ') || 'an unknown line';
}

/** When something was written, in the reader's own words. */
export const moment = (ms) => new Date(ms).toLocaleString(undefined, {
  dateStyle: 'medium', timeStyle: 'short',
});

/** A table of a few rows that are all seen: no sorting, no search; `kind` is `words` or empty. */
export function plainTable(caption, headings, rows, kind = '') {
  const head = el('tr', {}, headings.map((text) => el('th', { scope: 'col' }, text)));
  const body = rows.map(([first, ...rest]) => el(
    'tr', {}, el('th', { scope: 'row' }, first), rest.map((text) => el('td', {}, text)),
  ));
  return el(
    'div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    el(
      'table', { class: `plain ${kind}` }, el('caption', { class: 'hidden' }, caption),
      el('thead', {}, head), el('tbody', {}, body),
    ),
  );
}
