/** The tab: recordings on the left, one of them on the right, a view at a time. */
/* global profkit */
import {
  block, button, counted, el, moment, quiet, shown,
} from './elements.js';
import { ask, askUntilReady, isUnderWay, wait } from './server.js';
import { compare } from './compare.js';
import * as views from './views.js';

const viewTitles = [
  ['overview', 'Overview'], ['findings', 'Findings'], ['operators', 'Operators'],
  ['kernels', 'Kernels'], ['memory', 'Memory'], ['modules', 'Modules'], ['trace', 'Timeline'],
  ['ranks', 'Ranks'], ['compare', 'Compare'], ['whole', 'Report'],
];
const stageWords = {
  waiting: 'not analyzed yet', queued: 'waits its turn', analyzing: 'is being analyzed',
  failed: 'cannot be read',
};
const mostListed = 200;
const state = {
  recordings: [], id: '', view: 'overview', answer: null, search: '', shown: 0, listed: '',
  compared: { before: '', after: '' },
};
const main = document.getElementById('main');

/** The theme of the TensorBoard around this frame, else the reader's own. */
function followTheme() {
  let outside = null;
  try {
    outside = window.parent === window ? null : window.parent.document.body;
  } catch { /* a frame of another origin: its theme is its own */ }
  const preferred = window.matchMedia('(prefers-color-scheme: dark)');
  const apply = () => {
    const isDark = outside ? outside.classList.contains('dark-mode') : preferred.matches;
    document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
  };
  apply();
  preferred.addEventListener('change', apply);
  if (outside) new MutationObserver(apply).observe(outside, { attributeFilter: ['class'] });
}

const current = () => state.recordings.find((each) => each.id === state.id);

/** One line of the list: what is known of a recording at a glance. */
function summary(recording) {
  if (recording.stage !== 'ready') return stageWords[recording.stage];
  const { glance } = recording;
  const count = glance.n_errors + glance.n_warnings + glance.n_notes;
  const words = [counted(count, 'finding')];
  if (glance.step_ns !== null) words.push(`${profkit.formatNs(glance.step_ns)} a step`);
  return words.join(' · ');
}

function item(recording) {
  const name = recording.glance && recording.glance.rank !== null && recording.glance.rank !== undefined
    ? `rank ${recording.glance.rank}` : recording.name.replace(/\.\d{10,}$/, '');
  const link = el(
    'a', {
      href: `#${recording.id}/${state.view}`, title: shown(recording.name),
      'aria-current': recording.id === state.id ? 'page' : null,
    },
    el('span', { class: 'name' }, shown(name)),
    el('span', { class: `quiet ${recording.stage}` }, summary(recording)),
    el('span', { class: 'quiet' }, `${recording.kind} · ${moment(recording.modified_ms)}`),
  );
  return el('li', {}, link);
}

/** The list on the left, drawn anew only when something in it changed. */
function list() {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = state.recordings.filter((each) => {
    const text = shown(`${each.run}/${each.name}`).toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const key = JSON.stringify([found.slice(0, mostListed), found.length, state.id, state.view]);
  if (key === state.listed) return;
  state.listed = key;
  const byRun = new Map();
  for (const recording of found.slice(0, mostListed)) {
    const title = shown(recording.run);
    byRun.set(title, [...(byRun.get(title) ?? []), recording]);
  }
  const groups = [...byRun].map(([title, all]) => el(
    'section', {}, el('h2', {}, title === '.' ? 'recordings' : title), el('ul', {}, all.map(item)),
  ));
  const left = found.length - mostListed;
  const box = document.getElementById('list');
  const focused = box.contains(document.activeElement)
    ? document.activeElement.getAttribute('href') : null;
  box.replaceChildren(
    ...groups, left > 0 ? quiet(`and ${profkit.formatCount(left)} more: search for them`) : '',
    found.length ? '' : quiet('No recording has such a name.'),
  );
  if (focused) box.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

function sidebar() {
  const search = el('input', {
    type: 'search', placeholder: 'Search', 'aria-label': 'Search recordings',
  });
  search.addEventListener('input', () => { state.search = search.value; list(); });
  document.getElementById('runs').replaceChildren(search, el('div', { id: 'list' }));
}

/** What is shown where there is no recording yet: how to make one. */
function empty(told) {
  const example = 'import profkit\n\n'
    + 'for batch in profkit.steps(loader, "train", dir="LOGDIR"):\n    train_step(batch)\n';
  const missing = told.not_here.map((path) => el('li', {}, el('code', {}, shown(path))));
  main.replaceChildren(
    el('h1', {}, 'There is no recording yet'),
    el('p', {}, 'Record one into the folder that TensorBoard looks at; it appears here by itself.'),
    block('A program as it is', el('pre', { tabindex: '0' }, 'profkit run --dir LOGDIR train.py')),
    block('Or in the code', el('pre', { tabindex: '0' }, example)),
    el('p', {}, 'Traces that torch.profiler.tensorboard_trace_handler wrote are shown too, and '
      + 'files that end in .snapshot.pickle from torch.cuda.memory._dump_snapshot.'),
    ...(missing.length ? [block('Folders that are not on this machine', el('ul', {}, missing))] : []),
  );
}

function failure(answer) {
  const again = button('Try again', () => open(true));
  return [
    el('p', { class: 'error', role: 'alert' }, shown(answer.error)), quiet(shown(answer.hint)),
    ...(answer.can_retry ? [again] : []),
  ];
}

/** The frame of a recording: its name, its views, and the place for one of them. */
function frame(recording, verdict) {
  const links = viewTitles.map(([name, title]) => el('li', {}, el(
    'a', {
      href: `#${recording.id}/${name}`, 'aria-current': name === state.view ? 'page' : null,
    }, title,
  )));
  const place = el('div', { id: 'view' });
  main.replaceChildren(
    el('p', { class: 'quiet' }, shown(`${recording.run} / ${recording.name}`)),
    el('h1', {}, verdict),
    el('nav', { class: 'views', 'aria-label': 'Views' }, el('ul', {}, links)), place,
  );
  return place;
}

/** Show the ranks of a run, and again while more of them are analyzed. */
async function showRanks(place, isStale) {
  for (;;) {
    const all = await ask('ranks', { id: state.id });
    if (isStale()) return;
    if (!all.recordings) { place.replaceChildren(...failure(all)); return; }
    place.replaceChildren(...views.ranks(all).flat().filter(Boolean));
    if (!all.recordings.some(isUnderWay)) return;
    await wait(1500);
    if (isStale()) return;
  }
}

/** Of other recordings the one that is most likely another try of the same: by kind and run. */
function likest(others) {
  const { kind, run } = current();
  const inCommon = (other) => {
    let n = 0;
    while (n < run.length && run[n] === other.run[n]) n += 1;
    return n;
  };
  const rank = (other) => (other.kind === kind ? 1e6 : 0) + inCommon(other);
  return [...others].sort((a, b) => rank(b) - rank(a))[0];
}

function showView(place, isStale) {
  if (state.view === 'ranks') { showRanks(place, isStale); return; }
  if (state.view === 'compare') {
    const { compared } = state;
    compared.after = state.id;
    const others = state.recordings.filter(
      (each) => each.id !== state.id && each.stage !== 'failed',
    );
    if (!others.some((each) => each.id === compared.before)) {
      compared.before = likest(others)?.id ?? state.id;
    }
    place.replaceChildren(...compare(state.recordings, compared, isStale));
    return;
  }
  place.replaceChildren(...[views[state.view](state.answer)].flat(2).filter(Boolean));
}

/** Show what the address names. */
async function open(again = false) {
  state.shown += 1;
  const mine = state.shown;
  const isStale = () => mine !== state.shown;
  const recording = current();
  list();
  if (!recording) return;
  if (again || state.answer?.id !== recording.id || state.answer.stage !== 'ready') {
    const place = frame(recording, shown(recording.name));
    const tell = (answer) => place.replaceChildren(quiet(`This recording ${stageWords[answer.stage]} …`));
    tell({ stage: 'queued' });
    const query = { id: recording.id, ...(again === true ? { again: 1 } : {}) };
    const answer = await askUntilReady('report', query, tell, isStale);
    if (answer === null) return;
    state.answer = answer;
    if (answer.stage !== 'ready') { place.replaceChildren(...failure(answer)); return; }
  }
  document.title = `${shown(recording.run)} · Profkit`;
  showView(frame(recording, shown(state.answer.glance.verdict)), isStale);
}

function follow() {
  const [id, view] = window.location.hash.slice(1).split('/');
  const isKnown = viewTitles.some(([name]) => name === view);
  state.view = isKnown ? view : 'overview';
  const first = state.recordings.find((each) => each.stage !== 'failed') ?? state.recordings[0];
  state.id = state.recordings.some((each) => each.id === id) ? id : first?.id ?? '';
  open();
}

/** Ask what there is, again and again; less often the less there is to be told. */
async function watch() {
  for (;;) {
    const told = await ask('runs');
    if (told.recordings) {
      const before = current();
      const hadNone = state.recordings.length === 0;
      state.recordings = told.recordings;
      document.getElementById('version').textContent = told.version;
      if (state.recordings.length && hadNone) { sidebar(); follow(); }
      else if (!state.recordings.length && !told.is_looking && !before) empty(told);
      else if (before && current() && current().modified_ms !== before.modified_ms) open(true);
      if (state.recordings.length) list();
    }
    const busy = !told.recordings || told.is_looking || told.recordings.some(
      (each) => ['queued', 'analyzing'].includes(each.stage),
    );
    await wait(busy || !told.recordings.length ? 1500 : 6000);
  }
}

followTheme();
window.addEventListener('hashchange', follow);
watch();
