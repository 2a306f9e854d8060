'use strict';
/**
 * Timelines: visible range, selection, search; pointer, keyboard and links of the page. A section
 * has at most one, whose elements have the section's id as prefix.
 */
(() => {
  const run = (id) => {
    const { timeline: recorded } = profkit.data(id);
    const { sites, styles, steps } = recorded;
    const whole = { from: recorded.startNs, to: Math.max(recorded.endNs, recorded.startNs + 1) };
    const part = (name) => document.getElementById(`${id}-${name}`);
    const root = part('view');
    const lanes = root.querySelector('.lanes');
    const allLanes = root.querySelector('.all-lanes');
    const canvas = root.querySelector('.slices');
    const ruler = root.querySelector('.ruler');
    const overview = root.querySelector('.overview');
    const tip = root.querySelector('.slice-tip');
    const names = root.querySelector('.lane-names');
    const range = part('range');
    const details = part('details');
    const search = part('search');
    const next = part('next');
    const found = part('found');
    const stepChoice = part('step');
    const layout = new profkit.lanes.Layout(recorded.lanes);
    const facts = new profkit.SliceFacts(recorded);
    const reducedMotion = window.matchMedia('(prefers-reduced-motion: reduce)');
    const overviewHeight = 34;
    const rulerHeight = 22;
    const minSpanNs = 20;

    let view = { ...whole };
    let matches = null;
    let selected = null;
    let isFrameRequested = false;
    let rangeTimer = null;

    const levels = new profkit.slices.Levels(recorded, draw);

    /** Width of the slices, beside the lanes' names. */
    function width() {
      return Math.max(50, canvas.clientWidth);
    }

    const pixelNs = () => (view.to - view.from) / width();

    /** Show a time range, limited to the recording; optionally animated. */
    function show(from, to, animated = false) {
      const span = Math.min(Math.max(to - from, minSpanNs), whole.to - whole.from);
      const start = Math.min(Math.max(from - (span - (to - from)) / 2, whole.from), whole.to - span);
      const target = { from: start, to: start + span };
      if (!animated || reducedMotion.matches) {
        view = target;
        draw();
        return;
      }
      const initial = { ...view };
      const startMs = performance.now();
      const animate = (nowMs) => {
        const part = Math.min(1, (nowMs - startMs) / 180);
        const eased = 1 - (1 - part) ** 3;
        view = {
          from: initial.from + (target.from - initial.from) * eased,
          to: initial.to + (target.to - initial.to) * eased,
        };
        draw();
        if (part < 1) requestAnimationFrame(animate);
      };
      requestAnimationFrame(animate);
    }

    /** Zoom around a time; a factor below 1 zooms in. */
    function zoom(factor, around = (view.from + view.to) / 2, animated = false) {
      show(around - (around - view.from) * factor, around + (view.to - around) * factor, animated);
    }

    function pan(share) {
      const by = (view.to - view.from) * share;
      show(view.from + by, view.to + by);
    }

    function draw() {
      if (isFrameRequested) return;
      isFrameRequested = true;
      requestAnimationFrame(paint);
    }

    /** The rows of the overview: ranks, or steps and streams, or without a device a thread. */
    function overviewRows() {
      const rowsOf = (kind) => recorded.lanes.filter((lane) => lane.kind === kind)
        .map((lane) => lane.firstRow + (kind === 'thread' && steps.length && lane.nRows > 1 ? 1 : 0));
      const ranks = rowsOf('rank').slice(0, 6);
      const streams = rowsOf('stream').slice(0, 3);
      if (ranks.length) return ranks;
      return [...rowsOf('steps'), ...(streams.length ? streams : rowsOf('thread').slice(0, 1))];
    }

    function paint() {
      isFrameRequested = false;
      const size = { width: width(), height: lanes.clientHeight };
      const level = levels.at(pixelNs());
      if (!level) {
        if (levels.failed) range.textContent = 'This browser cannot decompress the timeline.';
        return;
      }
      const state = { layout, level, sites, styles, view, size, matches, selected };
      canvas.style.height = `${size.height}px`;
      profkit.lanes.drawSlices(canvas, { ...state, scroll: lanes.scrollTop });
      profkit.lanes.drawRuler(ruler, view, ruler.clientWidth, rulerHeight);
      profkit.lanes.drawOverview(overview, {
        ...state, whole, rows: overviewRows(), level: levels.at((whole.to - whole.from) / width()),
        size: { width: overview.clientWidth, height: overviewHeight },
      });
      Object.assign(root.dataset, {
        from: String(view.from), to: String(view.to), resolution: String(level.resolutionNs),
      });
      if (!performance.getEntriesByName('profkit:timeline').length) {
        performance.mark('profkit:timeline');
      }
      announceRange();
    }

    /** Write the visible range once it has settled, so that screen readers hear it once. */
    function announceRange() {
      const text = `${profkit.formatNs(view.to - view.from)} of `
        + `${profkit.formatNs(whole.to - whole.from)}, from ${profkit.formatNs(view.from)}`;
      clearTimeout(rangeTimer);
      rangeTimer = setTimeout(() => { range.textContent = text; }, 250);
    }

    /** Expand a lane to all its rows, or collapse it. */
    function toggle(index) {
      layout.toggle(index);
      drawNames();
      draw();
    }

    /** Draw the names of the lanes, as buttons where a lane can expand. */
    function drawNames() {
      const { laneHeight } = profkit.lanes;
      // The canvas is as high as the visible part, and stays in it while this element scrolls.
      allLanes.style.height = `${layout.height + 2}px`;
      const made = recorded.lanes.map((lane, index) => {
        const canOpen = layout.canOpen(index);
        const busy = lane.kind === 'rank' ? '' : `, busy ${profkit.formatNs(lane.busyNs)}`;
        const title = `${lane.label}: ${profkit.formatCount(lane.n)} events${busy}`;
        const name = profkit.element(canOpen ? 'button' : 'span',
          { class: 'lane-name', title, ...(canOpen ? { type: 'button', tabindex: '-1' } : {}) },
          lane.label);
        if (canOpen) {
          name.setAttribute('aria-expanded', String(layout.isOpen[index]));
          name.addEventListener('click', () => toggle(index));
        }
        name.style.top = `${layout.top[index]}px`;
        name.style.height = `${laneHeight - 4}px`;
        return name;
      });
      names.replaceChildren(...made);
    }

    /** The row under the pointer, and the index of the slice in it or -1. */
    function hit(event) {
      const box = canvas.getBoundingClientRect();
      const row = layout.rowAt(event.clientY - box.top + lanes.scrollTop);
      const level = levels.at(pixelNs());
      const ns = view.from + (event.clientX - box.left) * pixelNs();
      if (!row || !level || event.clientX < box.left) return { level, row: null, index: -1, ns };
      const index = profkit.slices.sliceAt(level, row.row, ns, 3 * pixelNs());
      return { level, row, index, ns };
    }

    function hideTip() {
      tip.hidden = true;
    }

    function showTip(event) {
      const { level, row, index } = hit(event);
      if (!row || index < 0) {
        hideTip();
        return;
      }
      tip.replaceChildren(profkit.element('b', {}, facts.title(level, index)),
        facts.list(facts.of(level, index)));
      profkit.canvas.showTip(tip, root.getBoundingClientRect(), event);
    }

    function select(level, row, index) {
      if (index < 0) {
        selected = null;
        details.replaceChildren();
      } else {
        selected = { row, start: level.start[index], end: level.end[index] };
        const to = profkit.element('button', { type: 'button' }, 'Zoom in');
        to.addEventListener('click', zoomToSelected);
        const lane = recorded.lanes[layout.rows.find((each) => each.row === row)?.lane ?? 0];
        details.replaceChildren(
          profkit.element('h3', {}, facts.title(level, index)),
          facts.list([['Lane', lane.label], ...facts.of(level, index)]), to,
        );
      }
      draw();
    }

    function zoomToSelected() {
      if (!selected) return;
      const margin = Math.max((selected.end - selected.start) * 0.1, minSpanNs);
      show(selected.start - margin, selected.end + margin, true);
    }

    /** Select the slice beside, above or below the selected one. */
    function selectAdjacent(across, down) {
      const level = levels.at(pixelNs());
      if (!level) return;
      const at = layout.rows.findIndex((each) => each.row === selected?.row);
      const { row, y } = layout.rows[Math.min(Math.max(at + down, 0), layout.rows.length - 1)];
      const middle = selected ? (selected.start + selected.end) / 2 : view.from;
      let slice = profkit.slices.sliceAt(level, row, middle, whole.to - whole.from);
      if (across !== 0 && selected) slice += across;
      if (slice < level.first[row] || slice >= level.first[row + 1]) return;
      select(level, row, slice);
      if (level.start[slice] < view.from || level.end[slice] > view.to) {
        const span = view.to - view.from;
        const start = level.start[slice] - span / 4;
        show(start, start + span);
      }
      if (y < lanes.scrollTop) lanes.scrollTop = y;
      const below = y + profkit.lanes.rowHeight - lanes.clientHeight;
      if (below > lanes.scrollTop) lanes.scrollTop = below;
    }

    const keys = {
      ArrowLeft: () => pan(-0.15),
      ArrowRight: () => pan(0.15),
      ArrowUp: () => { lanes.scrollTop -= 3 * profkit.lanes.rowHeight; },
      ArrowDown: () => { lanes.scrollTop += 3 * profkit.lanes.rowHeight; },
      '+': () => zoom(0.6),
      '=': () => zoom(0.6),
      '-': () => zoom(1 / 0.6),
      0: () => show(whole.from, whole.to, true),
      Home: () => show(whole.from, whole.to, true),
      Enter: zoomToSelected,
      ' ': () => toggle(layout.rows.find((each) => each.row === selected?.row)?.lane ?? 0),
      Escape: () => select(null, 0, -1),
    };
    const shifted = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
    };

    lanes.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target !== lanes) return;
      const adjacent = event.shiftKey ? shifted[event.key] : undefined;
      if (adjacent) selectAdjacent(...adjacent);
      else if (keys[event.key]) keys[event.key]();
      else return;
      event.preventDefault();
    });

    lanes.addEventListener('wheel', (event) => {
      const { ns } = hit(event);
      if (event.ctrlKey || event.metaKey) zoom(1.0015 ** event.deltaY, ns);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        pan((event.deltaX || event.deltaY) / width());
      } else return;
      event.preventDefault();
    }, { passive: false });

    profkit.onDrags(canvas, {
      view: () => view,
      show,
      scroller: lanes,
      onStart: hideTip,
      onClick: (event) => {
        const { level, row, index } = hit(event);
        select(level, row?.row ?? 0, row ? index : -1);
      },
    });
    canvas.addEventListener('pointermove', (event) => { if (!event.buttons) showTip(event); });
    canvas.addEventListener('pointerleave', hideTip);
    canvas.addEventListener('dblclick', zoomToSelected);
    lanes.addEventListener('scroll', () => {
      hideTip();
      draw();
    });

    overview.addEventListener('pointerdown', (event) => {
      const span = view.to - view.from;
      const moveTo = (pointer) => {
        const box = overview.getBoundingClientRect();
        const ns = whole.from + ((pointer.clientX - box.left) / box.width) * (whole.to - whole.from);
        show(ns - span / 2, ns + span / 2);
      };
      overview.setPointerCapture(event.pointerId);
      overview.addEventListener('pointermove', moveTo);
      overview.addEventListener('pointerup',
        () => overview.removeEventListener('pointermove', moveTo), { once: true });
      moveTo(event);
    });

    for (const button of document.querySelectorAll(`#${id} [data-zoom]`)) {
      button.addEventListener('click', () => {
        if (button.dataset.zoom === 'all') show(whole.from, whole.to, true);
        else zoom(button.dataset.zoom === 'in' ? 0.5 : 2, undefined, true);
      });
    }

    stepChoice?.addEventListener('change', () => {
      const step = steps[stepChoice.value];
      if (step && stepChoice.value !== '') show(step.startNs, step.endNs, true);
      else show(whole.from, whole.to, true);
    });

    /** Scroll to the lane that a text names, such as `rank 12`. */
    function findLane(text) {
      const lane = recorded.lanes.findIndex(({ label }) => (
        `${label} `.toLowerCase().startsWith(`${text} `)));
      if (lane < 0) return 'no match';
      lanes.scrollTop = layout.top[lane];
      return recorded.lanes[lane].label;
    }

    /** Highlight slices whose name, line or operator contains a text, and sum them. */
    function find() {
      const text = search.value.trim().toLowerCase();
      next.disabled = text === '';
      matches = null;
      found.textContent = '';
      if (text !== '') {
        const has = sites.texts.map((each) => each.toLowerCase().includes(text));
        matches = new Set([...sites.name.keys()].filter((site) => has[sites.name[site]]
          || has[sites.place[site]] || has[sites.op[site]]));
        let [n, totalNs] = [0, 0];
        // Segments of the critical path are parts of events that are counted already.
        const events = [...matches].filter((site) => !sites.isPath[site]);
        for (const site of events.length ? events : matches) {
          n += sites.n[site];
          totalNs += sites.totalNs[site];
        }
        found.textContent = n
          ? `${profkit.formatCount(n)} events, ${profkit.formatNs(totalNs)} total` : findLane(text);
        next.disabled = n === 0;
      }
      draw();
    }

    /** Select the next match in time. */
    function selectNext() {
      const level = levels.at(pixelNs());
      if (!level || !matches) return;
      const after = selected ? selected.start : -Infinity;
      let best = null;
      for (const { row } of layout.rows) {
        for (let i = level.first[row]; i < level.first[row + 1]; i += 1) {
          if (!matches.has(level.site[i]) || level.start[i] <= after) continue;
          if (!best || level.start[i] < level.start[best.i]) best = { row, i };
          break;
        }
      }
      if (!best) {
        selected = null;
        found.textContent = 'no more matches; Next starts over';
        return;
      }
      select(level, best.row, best.i);
      zoomToSelected();
    }

    search.addEventListener('input', find);
    search.addEventListener('keydown', (event) => { if (event.key === 'Enter') selectNext(); });
    next.addEventListener('click', selectNext);

    window.addEventListener('profkit:range', ({ detail }) => {
      if (detail.timeline !== id) return;
      show(detail.startNs, detail.endNs, true);
      root.closest('figure, section').scrollIntoView({ block: 'start' });
      lanes.focus({ preventScroll: true });
    });
    window.addEventListener('profkit:theme', draw);
    new ResizeObserver(() => {
      drawNames();
      draw();
    }).observe(lanes);
    drawNames();
  };
  for (const view of document.querySelectorAll('.timeline')) run(view.closest('section').id);
})();
