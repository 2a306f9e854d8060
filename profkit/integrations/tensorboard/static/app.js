/** The tab: the list of recordings, and the views of the selected one. */
/* global profkit */
import {
  block, counted, dateTime, el, failure, quiet, sortableTable,
} from './elements.js';
import { ask, askUntilReady, wait } from './server.js';
import { compare } from './compare.js';

const stageLabels = {
  waiting: 'not analyzed yet', queued: 'queued', analyzing: 'analyzing…', failed: 'cannot be read',
};
const maxListed = 200;
const state = {
  recordings: [], id: '', view: '', answer: null, search: '', nRequests: 0, listKey: '',
  isPressed: false, viewsKey: '[]',
  compared: { before: '', after: '' },
};
const root = document.documentElement;
const [main, head, place] = ['main', 'head', 'view'].map((id) => document.getElementById(id));
/** The pages of the selected recording and of its job, in sandboxed frames that can only draw. */
const frames = { report: null, job: null };

const current = () => state.recordings.find(({ id }) => id === state.id);
const sections = () => state.answer?.tab.sections ?? [];
const isSection = (id) => sections().some((section) => section.id === id);

/** Send theme and section to the pages in the frames. */
function updatePages() {
  for (const frame of Object.values(frames)) {
    frame?.contentWindow?.postMessage({ theme: root.dataset.theme, section: state.view }, '*');
  }
}

/** Follow the theme of TensorBoard around this frame, else the system's. */
function followTheme() {
  let outside = null;
  try {
    outside = window.parent === window ? null : window.parent.document.body;
  } catch { /* the frame of another origin: its theme is not known */ }

  const preferred = window.matchMedia('(prefers-color-scheme: dark)');
  const apply = () => {
    const isDark = outside ? outside.classList.contains('dark-mode') : preferred.matches;
    root.dataset.theme = isDark ? 'dark' : 'light';
    updatePages();
  };

  apply();
  preferred.addEventListener('change', apply);
  if (outside) new MutationObserver(apply).observe(outside, { attributeFilter: ['class'] });
}

/** Return the second line of a recording in the list: its progress, or its main figures. */
function summary({ stage, run_summary: run }) {
  if (stage !== 'ready') return stageLabels[stage];
  const findings = counted(run.n_errors + run.n_warnings + run.n_notes, 'finding');
  const stepNs = run.step_ns;
  return stepNs === null ? findings : `${findings} · ${profkit.formatNs(stepNs)} per step`;
}

function listItem(recording) {
  const rank = recording.run_summary?.rank ?? null;
  const name = rank === null ? recording.name.replace(/\.\d{10,}$/, '') : `rank ${rank}`;
  return el('li', {}, el(
    'a', {
      href: `#${recording.id}/${state.view}`, title: recording.name,
      'aria-current': recording.id === state.id && 'page',
    },
    el('span', { class: 'name' }, name),
    el('span', { class: `quiet ${recording.stage}` }, summary(recording)),
    el('span', { class: 'quiet' }, `${recording.kind} · ${dateTime(recording.modified_ms)}`),
  ));
}

/** Draw the list of recordings if it has changed. A link that is being clicked stays in place. */
function drawList() {
  if (state.isPressed) return;
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = state.recordings.filter(({ run, name }) => {
    const text = `${run}/${name}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const listed = matching.slice(0, maxListed);
  const key = JSON.stringify([listed, matching.length, state.id, state.view]);
  if (key === state.listKey) return;
  state.listKey = key;

  const byRun = new Map();
  for (const recording of listed) {
    byRun.set(recording.run, [...(byRun.get(recording.run) ?? []), recording]);
  }
  const groups = [...byRun].map(([run, recordings]) => el(
    'section', {}, el('h2', {}, run === '.' ? 'recordings' : run),
    el('ul', {}, recordings.map(listItem)),
  ));

  // A link with the focus keeps it: the list is replaced while the reader may use the keyboard.
  const nMore = matching.length - listed.length;
  const list = document.getElementById('list');
  const focused = list.contains(document.activeElement)
    ? document.activeElement.getAttribute('href') : null;
  list.replaceChildren(
    ...groups, nMore ? quiet(`${profkit.formatCount(nMore)} more; search to find them`) : '',
    matching.length ? '' : quiet('No recording matches.'),
  );
  if (focused) list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

function drawSidebar() {
  const search = el('input', {
    type: 'search', placeholder: 'Search', 'aria-label': 'Search recordings',
  });
  search.addEventListener('input', () => { state.search = search.value; drawList(); });
  const list = el('div', { id: 'list' });
  list.addEventListener('pointerdown', () => { state.isPressed = true; });
  document.getElementById('runs').replaceChildren(search, list);
}

/** Draw the list again after a press; the click on a link of it, if any, comes first. */
function release() {
  if (!state.isPressed) return;
  setTimeout(() => { state.isPressed = false; drawList(); });
}

/** Show how to make a recording. */
function drawEmpty(missing) {
  const example = 'import profkit\n\n'
    + 'for batch in profkit.steps(loader, "train", dir="LOGDIR"):\n    train_step(batch)\n';
  const folders = missing.map((path) => el('li', {}, el('code', {}, path)));
  place.replaceChildren(
    el('h1', {}, 'No recordings'),
    el('p', {}, 'Record into the folder that TensorBoard was started on; recordings appear here.'),
    block('From the command line', el('pre', { tabindex: '0' }, 'profkit run --dir LOGDIR train.py')),
    block('From Python', el('pre', { tabindex: '0' }, example)),
    el('p', {}, 'Traces of torch.profiler.tensorboard_trace_handler and files of '
      + 'torch.cuda.memory._dump_snapshot that end in .snapshot.pickle are shown too.'),
    ...(folders.length ? [block('Folders that are not on this machine', el('ul', {}, folders))] : []),
  );
}

/** Return whether the selected recording is of one of several ranks of its run. */
function isRank() {
  const { run_id: run, run_summary: summary } = current();
  const ranks = state.recordings.filter((recording) => recording.run_id === run)
    .map((recording) => recording.run_summary?.rank ?? null).filter((rank) => rank !== null);
  return (summary?.rank ?? null) !== null && new Set(ranks).size > 1;
}

/** Return the views of the selected recording: sections of its report, then views of the tab. */
function views() {
  if (!state.answer) return [];
  const ofTab = [
    ...(isRank() ? [['ranks', 'Ranks']] : []),
    ...(state.recordings.length > 1 ? [['compare', 'Compare']] : []),
  ];
  if (state.answer.tab.misreadings.length) ofTab.push(['torch-tb-profiler', 'PyTorch Profiler']);
  return [...sections().map(({ id, title }) => [id, title]), ...ofTab];
}

function drawHead() {
  const { id, run, name } = current();
  state.viewsKey = JSON.stringify(views());
  const files = (state.answer?.paths ?? []).map((path) => el('li', {}, el('code', {}, path)));
  const links = views().map(([view, title]) => el('li', {}, el(
    'a', { href: `#${id}/${view}`, 'aria-current': view === state.view && 'page' }, title,
  )));

  const address = `page?${new URLSearchParams({ id })}`;
  head.replaceChildren(
    el('h1', {}, `${run} / ${name}`),
    ...(files.length ? [el(
      'div', { class: 'source' },
      el('details', {}, el('summary', {}, counted(files.length, 'file')), el('ul', {}, files)),
      el(
        'a', { href: address, target: '_blank', rel: 'noopener noreferrer' },
        'Open the report in a new window',
      ),
    )] : []),
    ...(links.length ? [el('nav', { class: 'views', 'aria-label': 'Views' }, el('ul', {}, links))] : []),
  );
}

/** Show a page in its frame, with the section of the selected view on top. */
function showPage(name, query) {
  place.replaceChildren();
  if (frames[name]) {
    frames[name].hidden = false;
    updatePages();
    return;
  }

  const src = `page?${new URLSearchParams({ id: state.id, ...query })}`;
  const title = name === 'job' ? 'Report on all ranks' : 'Report';
  const frame = el('iframe', { src, title, sandbox: 'allow-scripts', class: `page ${name}` });
  frame.addEventListener('load', updatePages);
  frames[name] = frame;
  main.append(frame);
}

function showSection() {
  if (state.answer.has_page) showPage('report', {});
  else place.replaceChildren(quiet('This installation has no HTML report.'));
}

function removePages() {
  for (const name of Object.keys(frames)) {
    frames[name]?.remove();
    frames[name] = null;
  }
}

/** Select the view of the section that the report in the frame says is visible. */
function followPage({ source, data }) {
  const frame = frames.report;
  if (!frame || frame.hidden || source !== frame.contentWindow || !isSection(data?.section)) return;
  if (data.section === state.view) return;
  state.view = data.section;
  window.history.replaceState(null, '', `#${state.id}/${state.view}`);
  drawHead();
  drawList();
}

/** Show the report on all ranks of the run. */
async function showRanks(isStale, retry = false) {
  const showProgress = ({ stage }) => place.replaceChildren(quiet(stageLabels[stage]));
  const query = { id: state.id, ...(retry ? { again: 1 } : {}) };
  const answer = await askUntilReady('ranks', query, showProgress, isStale);
  if (answer === null) return;
  if (answer.stage === 'ready') showPage('job', { of: 'ranks' });
  else place.replaceChildren(...failure(answer, () => showRanks(isStale, true)));
}

/** Return the recording that is most likely another run of the same program: by kind and name. */
function findMostSimilar(recordings) {
  const { kind, run } = current();
  // A recording of the same kind, with the longest common beginning of the run's name.
  const score = (candidate) => {
    let n = candidate.kind === kind ? 1e6 : 0;
    for (let i = 0; i < run.length && run[i] === candidate.run[i]; i += 1) n += 1;
    return n;
  };
  return [...recordings].sort((a, b) => score(b) - score(a))[0];
}

function showComparison(isStale) {
  const { compared, id, recordings } = state;
  const candidates = recordings.filter(
    (recording) => recording.id !== id && recording.stage !== 'failed');
  compared.after = id;
  if (!candidates.some((candidate) => candidate.id === compared.before)) {
    compared.before = findMostSimilar(candidates)?.id ?? id;
  }
  place.replaceChildren(...compare(recordings, compared, isStale));
}

function showMisreadings() {
  const titles = ['View', 'Shown there', 'Actual'];
  place.replaceChildren(sortableTable({
    caption: 'Wrong figures of this recording in the tab “PyTorch Profiler”',
    columns: titles.map((title) => ({ title, kind: 'text' })),
    rows: state.answer.tab.misreadings.map(({ where, shown, actual }) => [where, shown, actual]),
    sortedBy: null,
  }));
}

function showView(isStale) {
  if (!views().some(([view]) => view === state.view)) state.view = views()[0]?.[0] ?? '';
  drawHead();
  drawList();
  for (const frame of Object.values(frames)) if (frame) frame.hidden = true;

  if (isSection(state.view)) { showSection(); return; }
  if (state.view === 'ranks') showRanks(isStale);
  else if (state.view === 'compare') showComparison(isStale);
  else showMisreadings();
}

/** Show the selected view of the selected recording. */
async function open(retry = false) {
  state.nRequests += 1;
  const request = state.nRequests;
  const isStale = () => request !== state.nRequests;
  const recording = current();
  drawList();
  if (!recording) return;

  if (retry || state.answer?.id !== recording.id) {
    removePages();
    state.answer = null;
    drawHead();

    const showProgress = ({ stage }) => place.replaceChildren(quiet(stageLabels[stage]));
    showProgress({ stage: 'queued' });
    const query = { id: recording.id, ...(retry ? { again: 1 } : {}) };
    const answer = await askUntilReady('sections', query, showProgress, isStale);
    if (answer === null) return;
    if (answer.stage !== 'ready') {
      place.replaceChildren(...failure(answer, () => open(true)));
      return;
    }
    state.answer = answer;
  }

  document.title = `${recording.run} · Profkit`;
  showView(isStale);
}

function follow() {
  const [id, view = ''] = window.location.hash.slice(1).split('/');
  const first = state.recordings.find(({ stage }) => stage !== 'failed') ?? state.recordings[0];
  state.view = view;
  state.id = state.recordings.some((recording) => recording.id === id) ? id : first?.id ?? '';
  open();
}

/** Poll the list of recordings, more often while the server is busy. */
async function watch() {
  for (;;) {
    const answer = await ask('runs');
    if (answer.recordings) {
      const before = current();
      const hadNone = state.recordings.length === 0;
      state.recordings = answer.recordings;
      document.getElementById('version').textContent = answer.version;
      document.getElementById('warning').textContent = answer.warning;

      if (state.recordings.length && hadNone) { drawSidebar(); follow(); }
      else if (!state.recordings.length && !answer.is_looking && !before) drawEmpty(answer.not_here);
      else if (before && current() && current().modified_ms !== before.modified_ms) open(true);
      if (state.recordings.length) drawList();

      // What the other recordings are, such as ranks of one job, is known when they are analyzed.
      if (current() && JSON.stringify(views()) !== state.viewsKey) drawHead();
    }

    const isBusy = !answer.recordings?.length || answer.is_looking
      || answer.recordings.some(({ stage }) => ['queued', 'analyzing'].includes(stage));
    await wait(isBusy ? 1500 : 6000);
  }
}

followTheme();
window.addEventListener('message', followPage);
window.addEventListener('hashchange', follow);
window.addEventListener('pointerup', release);
window.addEventListener('pointercancel', release);
watch();
