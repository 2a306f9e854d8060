/** Two recordings side by side: what is new, fixed, worse or better. */
import {
  el, failure, quiet, sortableTable,
} from './elements.js';
import { askUntilReady } from './server.js';

function choice(label, recordings, selected, onChange) {
  const select = el('select', {}, recordings.map(({ id, run, name, kind }) => el(
    'option', { value: id, selected: id === selected }, `${run} / ${name} (${kind})`,
  )));
  select.addEventListener('change', () => onChange(select.value));
  return el('label', {}, `${label} `, select);
}

/**
 * Return the view of a comparison.
 * @param {object[]} recordings All that can be compared.
 * @param {{before: string, after: string}} selected Ids; changed by the reader.
 * @param {() => boolean} isStale Whether the reader has left the view.
 */
export function compare(recordings, selected, isStale) {
  const result = el('div', { 'aria-live': 'polite' });
  let nRequests = 0;

  async function draw(retry = false) {
    nRequests += 1;
    const request = nRequests;
    if (selected.before === selected.after) {
      result.replaceChildren(quiet('Select two recordings.'));
      return;
    }

    result.replaceChildren(quiet('Comparing…'));
    const query = { before: selected.before, after: selected.after, ...(retry ? { again: 1 } : {}) };
    const stale = () => request !== nRequests || isStale();
    const answer = await askUntilReady('compare', query, () => {}, stale);
    if (answer === null) return;
    if (answer.stage !== 'ready') {
      result.replaceChildren(...failure(answer, () => draw(true)));
      return;
    }

    const { headline, notes, tables } = answer.tab;
    result.replaceChildren(
      el('p', {}, headline), ...notes.map(quiet), ...tables.map(sortableTable),
    );
  }

  draw();
  return [
    el(
      'div', { class: 'selection' },
      choice('Before', recordings, selected.before, (id) => { selected.before = id; draw(); }),
      choice('After', recordings, selected.after, (id) => { selected.after = id; draw(); }),
    ),
    result,
  ];
}
