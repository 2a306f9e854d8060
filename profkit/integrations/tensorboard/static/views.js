/** What the tab shows of one recording: a function a view, from its report to elements. */
/* global profkit */
import {
  block, counted, el, place, plainTable, prose, quiet, shown, whereabouts,
} from './elements.js';
import { columnsChart, coursesChart, partsBar } from './charts.js';
import { table } from './table.js';

// As on the HTML page.
const colors = {
  compute: 's3', communication: 's5', copy: 's6', operators: 's3', backward: 's1',
  optimizer: 's5', data: 's2', python: 's8', 'idle-sync': 's4', 'idle-data': 's2',
  'idle-allocator': 's7', 'idle-overhead': 's8', 'idle-host': 's1', 'idle-launch': 's6',
  'idle-device': 's5', 'idle-unknown': 's8',
};
const { formatNs, formatBytes, formatShare, formatCount } = profkit;
const known = (value, spell) => (value === null || value === undefined ? '–' : spell(value));

function tile(name, value, detail) {
  return el(
    'div', { class: 'tile' }, el('dt', {}, name), el('dd', {}, value),
    detail ? el('dd', { class: 'quiet' }, detail) : null,
  );
}

function tiles(answer) {
  const { glance } = answer;
  const nFindings = glance.n_errors + glance.n_warnings + glance.n_notes;
  const kinds = [['error', glance.n_errors], ['warning', glance.n_warnings], ['note', glance.n_notes]];
  const found = kinds.filter(([, n]) => n > 0).map(([name, n]) => counted(n, name));
  const mean = answer.report.summary.breakdown?.per_step_ns ?? null;
  return el(
    'dl', { class: 'tiles' },
    glance.step_ns === null ? null
      : tile(
        'Step', formatNs(glance.step_ns),
        `the median of ${formatCount(glance.n_steps)}; mean ${known(mean, formatNs)}`,
      ),
    glance.device_busy_share === null ? null
      : tile('Devices busy', formatShare(glance.device_busy_share), 'from first work to last'),
    glance.n_steps && glance.data_wait_ns
      ? tile('Wait for data', formatNs(glance.data_wait_ns / glance.n_steps), 'a step') : null,
    ...glance.peaks.map((peak) => tile('Peak memory', formatBytes(peak.bytes), shown(peak.device))),
    tile('Findings', formatCount(nFindings), found.join(', ')),
    glance.recoverable_ns ? tile('Could be saved', formatNs(glance.recoverable_ns), 'of the recording') : null,
  );
}

function breakdown(answer) {
  const { report, views } = answer;
  const whole = report.summary.breakdown;
  if (!whole || !whole.total_ns) return null;
  const parts = whole.parts.map((part) => ({
    name: views.words.parts[part.kind] ?? part.kind,
    value: part.per_step_ns ?? part.ns,
    share: part.share,
    color: colors[part.kind] ?? 's8',
  }));
  const length = formatNs(whole.per_step_ns ?? whole.total_ns);
  const title = `${views.words.whole}: ${length}`;
  return block(title, partsBar(title, parts));
}

function steps(answer) {
  const { steps: all } = answer.report.summary;
  if (all.length < 2) return null;
  const onDevice = all.every((step) => step.gpu_busy_ns !== null);
  const series = onDevice
    ? [{ name: 'a device works', color: 's3' }, { name: 'no device works', color: 's8' }]
    : [{ name: 'wait for data', color: 's2' }, { name: 'all else', color: 's1' }];
  const columns = all.map((step) => ({
    name: step.name,
    values: onDevice ? [step.gpu_busy_ns, step.gpu_idle_ns]
      : [Math.min(step.data_wait_ns, step.dur_ns), Math.max(0, step.dur_ns - step.data_wait_ns)],
  }));
  return block('Step by step', columnsChart('Time of each step', series, columns));
}

function devices(answer) {
  const rows = answer.report.summary.devices.map((device) => [
    shown(`${device.device} ${device.name}`), formatNs(device.span_ns),
    device.span_ns ? formatShare(device.busy_ns / device.span_ns) : '–',
    formatNs(device.compute_ns), formatNs(device.communication_ns), formatNs(device.overlap_ns),
    formatNs(device.memcpy_ns),
    known(device.occupancy_share, formatShare), known(device.tensor_core_share, formatShare),
    device.idle_causes.map((each) => `${each.cause} ${formatNs(each.ns)}`).join(', ') || '–',
  ]);
  const headings = [
    'device', 'span', 'busy', 'compute', 'communication', 'both at once', 'copies',
    'est. occupancy', 'tensor cores, at least', 'idle by cause',
  ];
  return rows.length ? block('Devices', plainTable('Devices', headings, rows)) : null;
}

function otherTab(answer) {
  const rows = answer.views.misreadings.map((each) => [each.where, each.shown, each.really]);
  if (!rows.length) return null;
  const title = 'What the tab “PyTorch Profiler” shows wrongly of this recording';
  return block(title, plainTable(title, ['there', 'what it shows', 'what is so'], rows, 'words'));
}

function recordingItself(answer) {
  const health = answer.report.health.map((each) => el('li', {}, shown(`${each.title}: ${each.message}`)));
  const unchecked = answer.views.words.unchecked.map(([reason, rules]) => (
    el('li', {}, shown(reason), ' ', el('span', { class: 'quiet' }, `(${rules})`))
  ));
  const paths = answer.paths.map((path) => el('li', {}, el('code', {}, shown(path))));
  return [
    health.length ? block('Faults of the recording', el('ul', {}, health)) : null,
    unchecked.length ? block('Not checked', el('ul', {}, unchecked)) : null,
    block(
      'The recording', el('p', {}, shown(answer.views.words.origin.join(' · '))),
      el('ul', {}, paths),
    ),
  ];
}

export const overview = (answer) => [
  tiles(answer), breakdown(answer), steps(answer), devices(answer), otherTab(answer),
  recordingItself(answer),
];

function evidence(finding) {
  const rows = Object.entries(finding.evidence).map(([name, value]) => [
    name, shown(Array.isArray(value) ? value.join(', ') : String(value)),
  ]);
  return rows.length ? el(
    'details', { class: 'figures' }, el('summary', {}, 'Evidence'),
    plainTable('Evidence', ['figure', 'value'], rows, 'words'),
  ) : null;
}

function oneFinding(finding, cost, isFirst) {
  const [first] = finding.locations;
  const where = (first && whereabouts(first)) || shown(finding.holders[0]?.join('') ?? '');
  return el(
    'details', { class: `finding ${finding.severity}`, open: isFirst },
    el(
      'summary', {}, el('span', { class: 'badge' }, finding.severity), ' ',
      el('b', {}, shown(finding.title)), ' ', el('span', { class: 'where' }, where),
      cost ? el('span', { class: 'cost' }, shown(cost)) : null,
    ),
    el('p', {}, prose(finding.message)),
    el('p', { class: 'fix' }, el('b', {}, 'Instead: '), prose(finding.fix)),
    finding.locations.length > 1
      ? el('ul', {}, finding.locations.map((each) => el('li', {}, whereabouts(each)))) : null,
    evidence(finding),
    el('p', { class: 'quiet' }, `${finding.rule} ${finding.name} · ${finding.confidence} confidence`),
  );
}

export function findings(answer) {
  const all = answer.report.findings;
  if (!all.length) return quiet('No rule that could look found anything to change.');
  return all.map((each, index) => oneFinding(each, answer.views.words.costs[index], index === 0));
}

export function operators(answer) {
  const rows = answer.report.summary.top_ops.map((op) => ({ ...op, line: place(op.location) }));
  if (!rows.length) return quiet('The recording has no operators.');
  return table('operators', [
    { key: 'name', title: 'operator', unit: 'text' },
    { key: 'n_calls', title: 'calls', unit: 'count' },
    { key: 'self_ns', title: 'host, itself', unit: 'ns', hint: 'without the operators within' },
    { key: 'total_ns', title: 'host, in all', unit: 'ns' },
    { key: 'device_ns', title: 'device', unit: 'ns', hint: 'kernels, copies and fills it launched' },
    { key: 'line', title: 'line with most of it', unit: 'text' },
  ], rows, 'total_ns');
}

/** How much of a device kernels use; a column of which nothing is known is left out. */
const fill = [
  {
    key: 'blocks_per_sm',
    title: 'blocks per SM',
    unit: 'number',
    hint: 'mean over the calls, by their time; below 1 some multiprocessors had none',
  },
  {
    key: 'occupancy_share',
    title: 'est. occupancy',
    unit: 'share',
    hint: 'of the warps that the device can hold, mean by time: estimated by the profiler from '
      + 'the launch, not measured; – is no estimate, as for kernels with over 48 KiB of shared memory',
  },
  {
    key: 'tensor_cores',
    title: 'tensor cores',
    unit: 'text',
    hint: 'told by the name; many names, such as those of Triton, tell nothing',
  },
];

export function kernels(answer) {
  const { summary } = answer.report;
  const spread = new Map(answer.views.kernels.map((each) => [each.name, each]));
  const rows = summary.top_kernels.map((kernel) => ({
    ...kernel,
    ...spread.get(kernel.name),
    tensor_cores: kernel.tensor_cores ? 'yes' : null,
    line: place(kernel.location),
  }));
  const copies = summary.copies.map((copy) => [
    shown(copy.kind), formatCount(copy.n_calls), formatNs(copy.total_ns),
    known(copy.bytes, formatBytes),
  ]);
  if (!rows.length && !copies.length) return quiet('No device worked in this recording.');
  return [
    table('kernels', [
      { key: 'name', title: 'kernel', unit: 'text' },
      { key: 'n_calls', title: 'calls', unit: 'count' },
      { key: 'total_ns', title: 'total', unit: 'ns' },
      { key: 'share', title: 'share', unit: 'share', hint: 'of the sum over all kernels' },
      { key: 'mean_ns', title: 'mean', unit: 'ns' },
      { key: 'min_ns', title: 'shortest', unit: 'ns' },
      { key: 'max_ns', title: 'longest', unit: 'ns' },
      ...fill.filter(({ key }) => rows.some((row) => row[key] !== null)),
      { key: 'op', title: 'operator', unit: 'text' },
      { key: 'module', title: 'module', unit: 'text' },
      { key: 'line', title: 'line', unit: 'text' },
    ], rows, 'total_ns'),
    copies.length
      ? block('Copies', plainTable('Copies', ['kind', 'calls', 'time', 'bytes'], copies)) : null,
  ];
}

export function modules(answer) {
  const rows = answer.views.modules;
  if (!rows.length) {
    return quiet('No module is known: record with Python stacks, as profkit.trace does by default.');
  }
  return table('modules', [
    { key: 'name', title: 'module', unit: 'text' },
    { key: 'parent', title: 'called by', unit: 'text' },
    { key: 'n_calls', title: 'calls', unit: 'count' },
    { key: 'total_ns', title: 'host, in all', unit: 'ns' },
    { key: 'n_ops', title: 'operators', unit: 'count' },
    { key: 'op_ns', title: 'in its own operators', unit: 'ns' },
    { key: 'device_ns', title: 'device', unit: 'ns' },
  ], rows, rows.some((row) => row.device_ns) ? 'device_ns' : 'op_ns');
}

function courseOf(device, at, spellAt, allocated, reserved) {
  const title = `Memory of ${shown(device)}`;
  const series = [{ name: 'allocated', color: 's1', values: allocated }];
  if (reserved.length) series.push({ name: 'reserved', color: 's8', values: reserved });
  return block(title, coursesChart(title, series, at, spellAt));
}

function watched(memory) {
  const figures = [
    ['host_rss_bytes', 'the process', 's8'], ['tensor_bytes', 'live tensors', 's1'],
    ['graph_bytes', 'autograd graphs', 's5'], ['allocated_bytes', 'allocated on devices', 's2'],
  ];
  const series = figures.map(([key, name, color]) => (
    { name, color, values: memory.steps.map((step) => step[key]) }
  )).filter((each) => each.values.some((value) => value !== null));
  const title = 'Memory when each step had ended';
  const at = memory.steps.map((step) => step.step);
  return block(title, coursesChart(title, series, at, (step) => `step ${formatCount(step)}`));
}

function sites(device) {
  const rows = device.peak_sites.map((site) => ({
    line: place(site.location) ?? 'no stack kept', use: site.category, n: site.n, bytes: site.bytes,
  }));
  return rows.length ? block(`What stood at the peak of ${shown(device.device)}`, table('sites', [
    { key: 'line', title: 'line', unit: 'text' },
    { key: 'use', title: 'use', unit: 'text' },
    { key: 'n', title: 'blocks', unit: 'count' },
    { key: 'bytes', title: 'bytes', unit: 'bytes' },
  ], rows, 'bytes')) : null;
}

export function memory(answer) {
  const told = answer.report.summary.memory;
  const { views } = answer;
  const drawn = [
    ...views.memory.map((each) => courseOf(
      each.device, each.at_ns, formatNs, each.allocated_bytes, each.reserved_bytes,
    )),
    ...(told?.devices ?? []).filter((device) => device.timeline.length).flatMap((device) => [
      courseOf(
        device.device, device.timeline.map((point) => point.entry),
        (entry) => `entry ${formatCount(entry)}`,
        device.timeline.map((point) => point.active_bytes),
        device.timeline.map((point) => point.reserved_bytes),
      ),
    ]),
    ...(told?.devices ?? []).map(sites),
    told?.steps.length > 1 ? watched(told) : null,
    views.op_memory.length ? block('Allocations by operator', table('allocations', [
      { key: 'op', title: 'operator', unit: 'text' },
      { key: 'device', title: 'device', unit: 'text' },
      { key: 'n_allocations', title: 'allocations', unit: 'count' },
      { key: 'allocated_bytes', title: 'allocated', unit: 'bytes' },
      { key: 'net_bytes', title: 'less what it freed', unit: 'bytes' },
    ], views.op_memory, 'allocated_bytes')) : null,
    views.allocations.length ? block('The largest allocations', table('blocks', [
      { key: 'op', title: 'operator', unit: 'text' },
      { key: 'device', title: 'device', unit: 'text' },
      { key: 'n_bytes', title: 'bytes', unit: 'bytes' },
      { key: 'at_ns', title: 'allocated at', unit: 'ns' },
      { key: 'held_ns', title: 'freed after', unit: 'ns', hint: '– is not within the recording' },
    ], views.allocations, 'n_bytes')) : null,
  ].filter(Boolean);
  return drawn.length ? drawn : quiet(
    'Nothing is known of memory: record with profile_memory, as profkit.trace does by default.',
  );
}

/** A page that the server made of the whole report, in a frame that may do nothing but draw. */
function page(answer, anchor, title) {
  if (!answer.has_page) return quiet('This installation has no HTML report.');
  const address = `page?${new URLSearchParams({ id: answer.id })}`;
  return [
    el('p', {}, el(
      'a', { href: address, target: '_blank', rel: 'noopener noreferrer' },
      'Open it in a window of its own',
    )),
    el('iframe', { src: `${address}${anchor}`, title, sandbox: 'allow-scripts', class: 'page' }),
  ];
}

export const trace = (answer) => page(answer, '#timeline', 'Timeline');
export const whole = (answer) => page(answer, '', 'Report');

/** Several ranks side by side. */
export function ranks(all) {
  const ready = all.recordings.filter((each) => each.stage === 'ready')
    .sort((a, b) => (a.glance.rank ?? 0) - (b.glance.rank ?? 0));
  const sum = (row, key) => row.glance.devices.reduce((total, device) => total + device[key], 0);
  const rows = ready.map((row) => ({
    rank: row.glance.rank === null ? shown(row.name) : `rank ${row.glance.rank}`,
    step_ns: row.glance.step_ns,
    busy: row.glance.device_busy_share,
    compute_ns: sum(row, 'compute_ns'),
    communication_ns: sum(row, 'communication_ns'),
    overlap_ns: sum(row, 'overlap_ns'),
    memcpy_ns: sum(row, 'memcpy_ns'),
    idle_ns: sum(row, 'idle_ns'),
    data_wait_ns: row.glance.data_wait_ns,
    findings: row.glance.n_errors + row.glance.n_warnings + row.glance.n_notes,
  }));
  const left = all.recordings.length - ready.length;
  const columns = [
    { key: 'rank', title: 'rank', unit: 'text' },
    { key: 'step_ns', title: 'median step', unit: 'ns' },
    { key: 'busy', title: 'devices busy', unit: 'share' },
    { key: 'compute_ns', title: 'compute', unit: 'ns' },
    { key: 'communication_ns', title: 'communication', unit: 'ns' },
    { key: 'overlap_ns', title: 'both at once', unit: 'ns' },
    { key: 'memcpy_ns', title: 'copies', unit: 'ns' },
    { key: 'idle_ns', title: 'idle', unit: 'ns' },
    { key: 'data_wait_ns', title: 'wait for data', unit: 'ns' },
    { key: 'findings', title: 'findings', unit: 'count' },
  ];
  const series = [
    { name: 'compute alone', color: 's3' }, { name: 'compute and communication', color: 's1' },
    { name: 'communication alone', color: 's5' },
  ];
  const columnsDrawn = rows.map((row) => ({
    name: row.rank,
    values: [row.compute_ns - row.overlap_ns, row.overlap_ns, row.communication_ns - row.overlap_ns],
  }));
  return [
    left ? quiet(`${formatCount(left)} more are not analyzed yet, or cannot be read.`) : null,
    rows.some((row) => row.communication_ns)
      ? block('Compute and communication', columnsChart('Ranks', series, columnsDrawn)) : null,
    block('Ranks', table('ranks', columns, rows, 'step_ns')),
  ];
}
