/** Two recordings side by side: what appeared, went, grew and shrank. */
/* global profkit */
import {
  block, button, el, place, plainTable, quiet, shown,
} from './elements.js';
import { askUntilReady } from './server.js';
import { table } from './table.js';

const spell = { ns: profkit.formatNs, bytes: profkit.formatBytes, count: profkit.formatCount };
const titles = [
  ['finding', 'Findings'], ['memory', 'Memory that stands, by stack'], ['kernel', 'Kernels'],
  ['operator', 'Operators'],
];

function choice(label, recordings, chosen, onChange) {
  const select = el('select', {}, recordings.map((each) => el(
    'option', { value: each.id, selected: each.id === chosen },
    shown(`${each.run} / ${each.name} (${each.kind})`),
  )));
  select.addEventListener('change', () => onChange(select.value));
  return el('label', {}, `${label} `, select);
}

function figures(difference) {
  const rows = difference.figures.map((figure) => {
    const { before, after, unit } = figure;
    const isKnown = before !== null && after !== null;
    const share = isKnown && before ? (after - before) / before : null;
    const sign = share > 0 ? '+' : '';
    const words = figure.name.replace(/_(ns|bytes)/, '').replaceAll('_', ' ');
    return [
      shown([words, figure.device].filter(Boolean).join(' ')),
      before === null ? '–' : spell[unit](before), after === null ? '–' : spell[unit](after),
      share === null ? '–' : sign + profkit.formatShare(share),
    ];
  });
  const headings = ['figure', 'before', 'after', 'change'];
  return rows.length ? block('Figures', plainTable('Figures', headings, rows)) : null;
}

function changes(difference, kind, title) {
  const all = difference.changes.filter((each) => each.kind === kind);
  if (!all.length) return null;
  const unit = all.find((each) => each.unit)?.unit ?? 'ns';
  const rows = all.map((each) => ({
    ...each,
    name: each.name || place(each.location) || 'no stack kept',
    line: place(each.location),
    change: (each.after ?? 0) - (each.before ?? 0),
  }));
  return block(title, table(title, [
    { key: 'name', title: 'what', unit: 'text' },
    { key: 'status', title: 'became', unit: 'text' },
    { key: 'before', title: 'before', unit },
    { key: 'after', title: 'after', unit },
    { key: 'change', title: 'change', unit },
    { key: 'line', title: 'line', unit: 'text' },
  ], rows, 'change'));
}

function drawn(difference) {
  const parts = [
    ...difference.notes.map((note) => el('p', {}, shown(note))),
    figures(difference), ...titles.map(([kind, title]) => changes(difference, kind, title)),
  ].filter(Boolean);
  return parts.length ? parts : [quiet('Nothing changed that can be told.')];
}

/**
 * The view of a comparison.
 * @param {object[]} recordings All that can be compared.
 * @param {{before: string, after: string}} chosen Ids; changed as the reader chooses.
 * @param {() => boolean} isStale Whether the reader has left the view.
 */
export function compare(recordings, chosen, isStale) {
  const result = el('div', { 'aria-live': 'polite' });
  let asked = 0;

  async function draw(again = false) {
    asked += 1;
    const mine = asked;
    if (chosen.before === chosen.after) {
      result.replaceChildren(quiet('Choose two recordings.'));
      return;
    }
    result.replaceChildren(quiet('Comparing …'));
    const query = { before: chosen.before, after: chosen.after, ...(again ? { again: 1 } : {}) };
    const stale = () => mine !== asked || isStale();
    const answer = await askUntilReady('compare', query, () => {}, stale);
    if (answer === null) return;
    if (answer.stage === 'ready') result.replaceChildren(...drawn(answer.difference));
    else {
      result.replaceChildren(
        el('p', { class: 'error', role: 'alert' }, shown(answer.error)), quiet(shown(answer.hint)),
        ...(answer.can_retry ? [button('Try again', () => draw(true))] : []),
      );
    }
  }

  function chooser() {
    return el(
      'div', { class: 'chooser' },
      choice('Before', recordings, chosen.before, (id) => { chosen.before = id; draw(); }),
      choice('After', recordings, chosen.after, (id) => { chosen.after = id; draw(); }),
    );
  }

  draw();
  return [chooser(), result];
}
