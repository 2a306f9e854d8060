/** The ranks of a run side by side. */
/* global profkit */
import {
  block, counted, el, quiet, sortableTable,
} from './elements.js';

/** The columns; `deviceTimes` says what ran in each part of a device's time, by title. */
const columnsOf = (deviceTimes) => [
  { title: 'Rank', kind: 'name' },
  { title: 'Step time', kind: 'ns', about: 'the mean' },
  { title: 'Device busy', kind: 'share', about: 'of the time from first work to last' },
  ...Object.entries(deviceTimes).map(([title, about]) => ({ title, kind: 'ns', about })),
  { title: 'Idle', kind: 'ns', about: 'nothing ran' },
  { title: 'Waiting for data', kind: 'ns', about: 'on the host, in all steps' },
  { title: 'Findings', kind: 'count' },
];
const parts = [
  ['compute only', '--series-3'], ['compute and communication', '--series-1'],
  ['communication only', '--series-5'],
];

/** A bar for each rank; the longest is as wide as the view. */
function bars(rows) {
  const lengths = rows.map(([, , , compute, communication, overlap]) => [
    compute - overlap, overlap, communication - overlap,
  ]);
  const longest = Math.max(1, ...lengths.map(([one, two, three]) => one + two + three));
  const swatch = (tag, name, color, share = 0) => {
    const made = el(tag, { class: name, 'aria-hidden': 'true' });
    made.style.setProperty('--color', `var(${color})`);
    made.style.setProperty('--share', share);
    return made;
  };
  return el(
    'figure', {},
    el('ul', { class: 'styles' }, parts.map(([label, color]) => (
      el('li', {}, swatch('i', 'swatch', color), label)
    ))),
    rows.map(([name], row) => el(
      'div', { class: 'rank' }, el('span', {}, name),
      el('div', { class: 'bar' }, lengths[row].map((ns, part) => {
        const made = swatch('span', 'part', parts[part][1], ns / longest);
        made.title = `${parts[part][0]}: ${profkit.formatNs(ns)}`;
        return made;
      })),
    )),
  );
}

export function ranks({ recordings, device_times: deviceTimes }) {
  const ready = recordings.filter((each) => each.stage === 'ready')
    .sort((a, b) => (a.run_summary.rank ?? 0) - (b.run_summary.rank ?? 0));
  const rows = ready.map(({ name, run_summary: run }) => {
    const sum = (key) => run.devices.reduce((total, device) => total + device[key], 0);
    return [
      run.rank === null ? name : `rank ${run.rank}`, run.mean_step_ns, run.device_busy_share,
      sum('compute_ns'), sum('communication_ns'), sum('overlap_ns'), sum('memcpy_ns'),
      sum('idle_ns'), run.data_wait_ns, run.n_errors + run.n_warnings + run.n_notes,
    ];
  });
  const nPending = recordings.length - ready.length;
  return [
    ...(nPending ? [quiet(`${counted(nPending, 'recording')} not analyzed yet, or unreadable.`)] : []),
    ...(rows.some((row) => row[4]) ? [block('Compute and communication', bars(rows))] : []),
    sortableTable({
      caption: 'Ranks', columns: columnsOf(deviceTimes), rows, sortedBy: null,
    }),
  ];
}
