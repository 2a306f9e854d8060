'use strict';
/**
 * Timelines: visible range, selection, search; pointer, keyboard and links of the page. A section
 * has at most one, whose elements have the section's id as prefix.
 */
(() => {
  const overviewHeight = 34;
  const rulerHeight = 22;
  const minSpanNs = 20;
  const maxArrows = 200;
  const maxLinks = 12;
  /** Lanes of recorded events; the others show what profkit found. */
  const ofEvents = new Set(['stream', 'annotations', 'thread', 'other', 'rank']);
  /** What a held key does in a second: the range that it moves by, and how it scales it. */
  const held = {
    w: { zoom: 0.12 }, s: { zoom: 1 / 0.12 }, a: { pan: -1.1 }, d: { pan: 1.1 },
  };
  const keysHelp = [
    ['W S', 'zoom in and out at the pointer'],
    ['A D', 'pan to the left and right'],
    ['← → ↑ ↓', 'pan and scroll'],
    ['+ −', 'zoom'],
    ['0 Home', 'show all'],
    ['Shift ← → ↑ ↓', 'select the slice beside, above or below'],
    ['Enter F', 'zoom to the selection'],
    ['G', 'go from a launch to what it launched, and back'],
    ['M', 'sum the visible range, or the range of the selected slice'],
    ['Space', 'open or close the lane of the selected slice'],
    ['N P', 'next and previous match of the search'],
    ['] [', 'next and previous finding'],
    ['/', 'search'],
    ['Esc', 'clear the selection'],
    ['drag', 'pan'],
    ['Ctrl wheel', 'zoom'],
    ['Shift drag', 'sum an area; a flat one, or one on the ruler without Shift, is of all lanes'],
  ];

  const run = (id) => {
    const { timeline: recorded } = profkit.data(id);
    const { sites, steps } = recorded;
    const whole = { from: recorded.startNs, to: Math.max(recorded.endNs, recorded.startNs + 1) };
    const part = (name) => document.getElementById(`${id}-${name}`);
    const root = part('view');
    const section = root.closest('section');
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
    const found = part('found');
    const findings = part('findings');
    const steppers = [part('previous'), part('next')];
    const stepChoice = part('step');
    const layout = new profkit.lanes.Layout(recorded.lanes);
    const facts = new profkit.SliceFacts(recorded);
    const colors = new profkit.SliceColors(recorded);
    const eventArguments = new profkit.SliceArguments(recorded);
    const reducedMotion = window.matchMedia('(prefers-reduced-motion: reduce)');
    const rowsOf = (isWanted) => recorded.lanes.filter(isWanted).flatMap(
      ({ firstRow, nRows }) => Array.from({ length: nRows }, (_, i) => firstRow + i));

    let view = { ...whole };
    let matches = null;
    let selected = null;
    let arrows = [];
    let area = null;
    let pointerNs = null;
    let isFrameRequested = false;
    let animation = null;
    let rangeTimer = null;
    let searchTimer = null;

    const levels = new profkit.slices.Levels(recorded, draw);

    /** Return the width of the slices, without the lanes' names. */
    function width() {
      return Math.max(50, canvas.clientWidth);
    }

    const pixelNs = () => (view.to - view.from) / width();

    /** Show a time range, limited to the recording; optionally animated. */
    function show(from, to, animated = false) {
      const span = Math.min(Math.max(to - from, minSpanNs), whole.to - whole.from);
      const start = Math.min(Math.max(from - (span - (to - from)) / 2, whole.from), whole.to - span);
      const target = { from: start, to: start + span };

      // The latest movement replaces one that is still under way.
      cancelAnimationFrame(animation);
      if (!animated || reducedMotion.matches) {
        view = target;
        draw();
        return;
      }

      const initial = { ...view };
      const startMs = performance.now();
      const animate = (nowMs) => {
        const share = Math.min(1, Math.max(0, nowMs - startMs) / 180);
        // Cubic ease-out: fast at first, so that the page reacts at once.
        const eased = 1 - (1 - share) ** 3;
        view = {
          from: initial.from + (target.from - initial.from) * eased,
          to: initial.to + (target.to - initial.to) * eased,
        };
        draw();
        if (share < 1) animation = requestAnimationFrame(animate);
      };
      animation = requestAnimationFrame(animate);
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

    /** Return the rows of the overview: ranks, or steps and streams, or without a device a thread. */
    function overviewRows() {
      // The first row of a thread with steps has only the steps.
      const firstRows = (kind) => recorded.lanes.filter((lane) => lane.kind === kind)
        .map((lane) => lane.firstRow + (kind === 'thread' && steps.length && lane.nRows > 1 ? 1 : 0));
      const ranks = firstRows('rank').slice(0, 6);
      const streams = firstRows('stream').slice(0, 3);
      if (ranks.length) return ranks;
      return [...firstRows('steps'),
        ...(streams.length ? streams : firstRows('thread').slice(0, 1))];
    }

    function paint() {
      isFrameRequested = false;
      const size = { width: width(), height: lanes.clientHeight };
      const level = levels.at(pixelNs());
      if (!level) {
        if (levels.failed) range.textContent = 'This browser cannot decompress the timeline.';
        return;
      }

      const state = { layout, level, sites, colors, view, size, selected, arrows, area };
      canvas.style.height = `${size.height}px`;
      profkit.lanes.drawSlices(canvas, {
        ...state, matches: matches?.occurrences, scroll: lanes.scrollTop,
      });
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
      const elements = recorded.lanes.map((lane, index) => {
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
      names.replaceChildren(...elements);
    }

    /** Return the moment at a horizontal position of the window. */
    function nsAt(clientX) {
      return view.from + (clientX - canvas.getBoundingClientRect().left) * pixelNs();
    }

    /** Return the height in all lanes at a vertical position of the window. */
    function heightAt(clientY) {
      return clientY - canvas.getBoundingClientRect().top + lanes.scrollTop;
    }

    /** Return the row under the pointer, and the index of the slice in it or -1. */
    function hit(event) {
      const row = layout.rowAt(heightAt(event.clientY));
      const level = levels.at(pixelNs());
      const ns = nsAt(event.clientX);
      if (!row || !level || ns < view.from) return { level, row: null, index: -1, ns };
      const index = profkit.slices.sliceAt(level, row.row, ns, 3 * pixelNs());
      return { level, row, index, ns };
    }

    function hideTip() {
      tip.hidden = true;
    }

    function showTip(event) {
      const { level, row, index, ns } = hit(event);
      pointerNs = ns;
      if (!row || index < 0) {
        hideTip();
        return;
      }
      tip.replaceChildren(profkit.element('b', {}, facts.title(level, index)),
        facts.list(facts.of(level, index)));
      profkit.canvas.showTip(tip, root.getBoundingClientRect(), event);
    }

    /** Clear what is selected: a slice, or an area. */
    function clear() {
      selected = null;
      area = null;
      arrows = [];
      details.replaceChildren();
      draw();
    }

    /** Select a slice, and describe it; its arguments follow when they are decoded. */
    async function select(level, row, index) {
      clear();
      if (index < 0) return;
      const slice = { row, start: level.start[index], end: level.end[index] };
      selected = slice;
      const lane = recorded.lanes[layout.laneOf(row)];
      const actions = profkit.element('p', { class: 'actions' },
        action('Zoom in', () => zoomToSelected()), action('Sum its range', sumSelected));
      const describe = (...more) => details.replaceChildren(
        profkit.element('h3', {}, facts.title(level, index)),
        profkit.element('div', { class: 'columns' },
          facts.list([['Lane', lane.label], ...facts.of(level, index)]), ...more),
        actions);
      describe();

      // Only single recorded events have arguments, which are those of slices of the finest level.
      if (level.n[index] > 1 || !ofEvents.has(lane.kind)) return;
      const [finest] = await Promise.all([levels.finest(), eventArguments.read()]);
      if (selected !== slice || !finest) return;
      const place = profkit.slices.sliceAt(finest, row, (slice.start + slice.end) / 2, 1);
      if (finest.start[place] !== slice.start || finest.n[place] > 1) return;

      slice.place = place;
      const pairs = eventArguments.of(place);
      if (pairs.length) {
        describe(
          profkit.element('div', {}, profkit.element('h4', {}, 'Arguments'), facts.list(pairs)));
      }
      link(finest, place, actions);
      draw();
    }

    function action(label, does) {
      const button = profkit.element('button', { type: 'button' }, label);
      button.addEventListener('click', does);
      return button;
    }

    /** Draw arrows from a launch to its kernels, and add buttons that go to the other end. */
    function link(finest, place, actions) {
      const launch = eventArguments.launchOf(place);
      const launched = eventArguments.launchedBy(place);
      const at = (slice) => ({ row: rowOf(finest, slice), start: finest.start[slice], slice });
      arrows = [
        ...(launch < 0 ? [] : [[at(launch), at(place)]]),
        ...launched.slice(0, maxArrows).map((slice) => [at(place), at(slice)]),
      ];
      selected.linked = launch < 0 ? launched : [launch];

      const go = (slice, label) => action(`${label}: ${facts.title(finest, slice)}`,
        () => goTo(finest, slice));
      actions.append(
        ...(launch < 0 ? [] : [go(launch, 'Launch')]),
        ...launched.slice(0, maxLinks).map((slice) => go(slice, 'Launched')));
      const nMore = launched.length - maxLinks;
      if (nMore > 0) actions.append(` and ${profkit.formatCount(nMore)} more`);
    }

    /** Return the row of a slice; rows without slices begin where the next one does. */
    const rowOf = ({ first }, slice) => profkit.firstWhere(
      0, first.length, (row) => first[row] > slice) - 1;

    /** Select a slice of the finest level, and show it: at this zoom if it is wide enough. */
    function goTo(level, slice) {
      const row = rowOf(level, slice);
      const lane = layout.laneOf(row);
      if (row - recorded.lanes[lane].firstRow >= layout.nVisible(lane)) toggle(lane);
      select(level, row, slice);

      const [start, end] = [level.start[slice], level.end[slice]];
      const span = view.to - view.from;
      if (end - start > span || (end - start) / pixelNs() < 12) zoomToSelected(2);
      else if (start < view.from || end > view.to) {
        show(start - span / 3, start + span * (2 / 3), true);
      }
      scrollTo(row);
    }

    function scrollTo(row) {
      const y = layout.yOf(row);
      if (y < lanes.scrollTop) lanes.scrollTop = y;
      const below = y + profkit.lanes.rowHeight - lanes.clientHeight;
      if (below > lanes.scrollTop) lanes.scrollTop = below;
    }

    /** Show the selected slice or area with a margin, which is a multiple of its length. */
    function zoomToSelected(margin = 0.1) {
      const shown = selected ? { from: selected.start, to: selected.end } : area;
      if (!shown) return;
      const marginNs = Math.max((shown.to - shown.from) * margin, minSpanNs);
      show(shown.from - marginNs, shown.to + marginNs, true);
    }

    /** Mark an area, and sum what is in it once it does not change any more. */
    function mark(from, to, top, bottom, isFinal) {
      if (!area) clear();
      area = {
        from: Math.max(Math.min(from, to), whole.from), to: Math.min(Math.max(from, to), whole.to),
        top: Math.min(top, bottom), bottom: Math.max(top, bottom),
      };
      draw();
      if (isFinal) sumArea();
    }

    const markAll = (from, to) => mark(from, to, 0, layout.height, true);

    function sumSelected() {
      if (selected) markAll(selected.start, selected.end);
      else markAll(view.from, view.to);
    }

    /** Sum an area: recorded events, or if it has no lane of them, all other slices. */
    async function sumArea() {
      const marked = area;
      const finest = await levels.finest();
      if (!finest || area !== marked) return;

      const rows = layout.rowsWithin(marked.top, marked.bottom);
      const recordedRows = rows.filter(({ lane }) => ofEvents.has(recorded.lanes[lane].kind));
      const summed = recordedRows.length ? recordedRows : rows;
      const inLanes = new Set(summed.map(({ lane }) => recorded.lanes[lane].label));
      const label = inLanes.size === 1 ? [...inLanes][0] : `${inLanes.size} lanes`;
      const sums = profkit.slices.sums(
        finest, summed.map(({ row }) => row), marked.from, marked.to);

      details.replaceChildren(
        profkit.element('h3', {}, 'Area'),
        ...facts.sums(sums, Math.max(1, marked.to - marked.from), label),
        profkit.element('p', { class: 'actions' }, action('Zoom in', () => zoomToSelected()),
          action('Clear', clear)),
      );
    }

    /** Select the slice next to, above or below the selected one. */
    function selectAdjacent(across, down) {
      const level = levels.at(pixelNs());
      if (!level) return;

      const index = layout.rows.findIndex(({ row }) => row === selected?.row);
      const { row } = layout.rows[Math.min(Math.max(index + down, 0), layout.rows.length - 1)];
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
      scrollTo(row);
    }

    /** Select the other end of the first arrow. */
    async function goAlong() {
      const finest = await levels.finest();
      if (finest && selected?.linked?.length) goTo(finest, selected.linked[0]);
    }

    const scrollRows = (n) => { lanes.scrollTop += n * profkit.lanes.rowHeight; };
    const keys = {
      ArrowLeft: () => pan(-0.15),
      ArrowRight: () => pan(0.15),
      ArrowUp: () => scrollRows(-3),
      ArrowDown: () => scrollRows(3),
      '+': () => zoom(0.6),
      '=': () => zoom(0.6),
      '-': () => zoom(1 / 0.6),
      0: () => show(whole.from, whole.to, true),
      Home: () => show(whole.from, whole.to, true),
      Enter: () => zoomToSelected(),
      f: () => zoomToSelected(),
      g: goAlong,
      m: sumSelected,
      n: () => stepMatch(true),
      p: () => stepMatch(false),
      ']': () => stepFinding(true),
      '[': () => stepFinding(false),
      ' ': () => toggle(selected ? layout.laneOf(selected.row) : 0),
      Escape: clear,
    };
    const shifted = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
    };

    const pressed = new Set();
    let movedMs = 0;

    /** Move by what the held keys do in the time since the last frame. */
    function move(nowMs) {
      if (!pressed.size) return;
      const seconds = Math.min(0.05, Math.max(0, nowMs - movedMs) / 1000);
      movedMs = nowMs;
      for (const key of pressed) moveBy(key, seconds);
      requestAnimationFrame(move);
    }

    function moveBy(key, seconds) {
      const { zoom: factor, pan: share } = held[key];
      if (share) pan(share * seconds);
      else {
        const isVisible = pointerNs !== null && pointerNs >= view.from && pointerNs <= view.to;
        zoom(factor ** seconds, isVisible ? pointerNs : undefined);
      }
    }

    /** Move at once, then further while the key is held. */
    function hold(key, isRepeated) {
      if (reducedMotion.matches) moveBy(key, 0.15);
      else if (!isRepeated && !pressed.has(key)) {
        moveBy(key, 0.08);
        pressed.add(key);
        movedMs = performance.now();
        if (pressed.size === 1) requestAnimationFrame(move);
      }
    }

    document.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || profkit.keys.isTyping(event)) {
        pressed.clear(); // some systems tell no release of a key while another is held
        return;
      }
      const isHere = event.target === lanes
        || (event.target === document.body && root.matches(':hover'));
      if (!isHere) return;
      const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
      const adjacent = event.shiftKey ? shifted[key] : undefined;
      if (adjacent) selectAdjacent(...adjacent);
      else if (held[key]) hold(key, event.repeat);
      else if (keys[key]) keys[key]();
      else return;
      event.preventDefault();
    });
    document.addEventListener('keyup', ({ key }) => pressed.delete(key.toLowerCase()));
    window.addEventListener('blur', () => pressed.clear());

    lanes.addEventListener('wheel', (event) => {
      const ns = nsAt(event.clientX);
      if (event.ctrlKey || event.metaKey) zoom(1.0015 ** event.deltaY, ns);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        pan((event.deltaX || event.deltaY) / width());
      } else return;
      event.preventDefault();
    }, { passive: false });

    const areas = root.querySelector('[data-areas]');
    areas.addEventListener('click', () => {
      const isOn = areas.ariaPressed !== 'true';
      areas.ariaPressed = String(isOn);
      canvas.style.touchAction = isOn ? 'none' : '';
    });
    profkit.onDrags(canvas, {
      view: () => view,
      show,
      scroller: lanes,
      onStart: hideTip,
      isArea: (event) => event.shiftKey || areas.ariaPressed === 'true',
      onArea: (first, now, isFinal) => {
        // A flat one is of all lanes: a finger hardly ever moves down as well.
        const [top, bottom] = Math.abs(now.clientY - first.clientY) < 4 ? [0, layout.height]
          : [heightAt(first.clientY), heightAt(now.clientY)];
        mark(nsAt(first.clientX), nsAt(now.clientX), top, bottom, isFinal);
      },
      onClick: (event) => {
        const { level, row, index } = hit(event);
        select(level, row?.row ?? 0, row ? index : -1);
      },
    });
    canvas.addEventListener('pointermove', (event) => { if (!event.buttons) showTip(event); });
    canvas.addEventListener('pointerleave', () => {
      pointerNs = null;
      hideTip();
    });
    canvas.addEventListener('dblclick', () => zoomToSelected());
    lanes.addEventListener('scroll', () => {
      hideTip();
      draw();
    });

    /** Follow the pointer from a press until it is released. */
    function follow(element, onMove) {
      let first = null;
      element.addEventListener('pointerdown', (event) => {
        if (event.button !== 0 || !event.isPrimary) return;
        first = nsAt(event.clientX);
        element.setPointerCapture(event.pointerId);
        onMove(event, first, false);
      });
      element.addEventListener('pointermove', (event) => {
        if (first !== null && event.isPrimary) onMove(event, first, false);
      });
      element.addEventListener('pointerup', (event) => {
        if (first !== null && event.isPrimary) onMove(event, first, true);
      });
      // It follows a release, and a pointer that the system took away.
      element.addEventListener('lostpointercapture', () => { first = null; });
    }

    follow(overview, (pointer) => {
      const span = view.to - view.from;
      const box = overview.getBoundingClientRect();
      const ns = whole.from + ((pointer.clientX - box.left) / box.width) * (whole.to - whole.from);
      show(ns - span / 2, ns + span / 2);
    });
    follow(ruler, (pointer, first, isFinal) => {
      const now = nsAt(pointer.clientX);
      if (Math.abs(now - first) < 3 * pixelNs()) return;
      mark(first, now, 0, layout.height, isFinal);
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

    /** Highlight slices whose name, line, module or operator contains a text, and sum them. */
    function find() {
      const text = search.value.trim().toLowerCase();
      clearTimeout(searchTimer);
      matches = null;
      found.textContent = '';
      for (const button of steppers) button.disabled = true;
      if (text !== '') findText(text);
      draw();
    }

    function findText(text) {
      const has = sites.texts.map((siteText) => siteText.toLowerCase().includes(text));
      const matching = [...sites.name.keys()].filter((site) => has[sites.name[site]]
        || has[sites.place[site]] || has[sites.op[site]]);

      // Segments of the critical path are parts of events that are counted already.
      const events = matching.filter((site) => !sites.isPath[site]);
      const counted = events.length ? events : matching;
      let [n, totalNs] = [0, 0];
      for (const site of counted) {
        n += sites.n[site];
        totalNs += sites.totalNs[site];
      }

      const sum = `${profkit.formatCount(n)} events, ${profkit.formatNs(totalNs)} total`;
      found.textContent = n ? sum : findLane(text);
      if (n) {
        // Single events are found once the reader stops typing.
        matches = { sum, occurrences: null };
        searchTimer = setTimeout(locate, 120, matches, new Set(counted));
      }
    }

    /** Find every single event of a search. */
    async function locate(request, matching) {
      const finest = await levels.finest();
      if (!finest || matches !== request) return;
      request.occurrences = new profkit.slices.Occurrences(finest, rowsOf(() => true), matching);
      for (const button of steppers) button.disabled = request.occurrences.n === 0;
      root.dataset.located = search.value;
      draw();
    }

    /** Select the next occurrence after the selected slice, or the one before it. */
    function step(occurrences, isForward, onEnd) {
      const none = isForward ? -Infinity : Infinity;
      const next = occurrences.next(selected?.start ?? none, selected?.place ?? none, isForward);
      if (!next) {
        clear();
        onEnd();
        return null;
      }

      goTo(occurrences.level, next.index);
      selected.place = next.index;
      return `${profkit.formatCount(occurrences.rank(next))} of `
        + `${profkit.formatCount(occurrences.n)}`;
    }

    function stepMatch(isForward) {
      if (!matches?.occurrences?.n) return;
      const place = step(matches.occurrences, isForward, () => {
        found.textContent = 'no more matches; the next one starts over';
      });
      if (place) found.textContent = `${place}; ${matches.sum}`;
    }

    const findingRows = rowsOf(({ kind }) => kind === 'findings');
    const [findingChoice, findingStatus] = ['select', '.found'].map(
      (selector) => findings.querySelector(selector));
    let occurrencesOfFindings = null;

    /** Offer to step through the findings, or through one of them. */
    function offerFindings() {
      const style = recorded.styles.findIndex(({ label }) => label === 'findings');
      const ofFindings = [...sites.name.keys()].filter((site) => sites.style[site] === style);
      if (!findingRows.length || !ofFindings.length) return;

      findings.hidden = false;
      const texts = [...new Set(ofFindings.map((site) => sites.name[site]))];
      findingChoice.append(...texts.map((text) => (
        profkit.element('option', { value: String(text) }, sites.texts[text]))));
      findingChoice.addEventListener('change', () => {
        occurrencesOfFindings = null;
        findingStatus.textContent = '';
        clear();
        if (findingChoice.value !== '') stepFinding(true);
      });

      for (const button of findings.querySelectorAll('[data-step]')) {
        button.addEventListener('click', () => stepFinding(button.dataset.step === '1'));
      }
    }

    async function stepFinding(isForward) {
      if (!findingRows.length) return;
      const finest = await levels.finest();
      if (!finest) return;

      if (!occurrencesOfFindings) {
        const chosen = [...sites.name.keys()].filter((site) => (
          findingChoice.value === '' || sites.name[site] === Number(findingChoice.value)));
        occurrencesOfFindings = new profkit.slices.Occurrences(
          finest, findingRows, new Set(chosen));
      }

      findingStatus.textContent = step(occurrencesOfFindings, isForward, () => {})
        ?? 'no more; the next one starts over';
    }

    function drawLegend() {
      part('styles').replaceChildren(...colors.legend().map(({ label, color, pattern }) => (
        profkit.element('li', {},
          color && profkit.element('i', { class: `swatch ${pattern}`, style: `--color: ${color}` }),
          label))));
    }

    part('colors')?.addEventListener('change', ({ target }) => {
      colors.choose(target.value);
      drawLegend();
      draw();
    });

    search.addEventListener('input', find);
    search.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') stepMatch(!event.shiftKey);
      if (event.key === 'Escape') lanes.focus({ preventScroll: true });
    });
    steppers.forEach((button, index) => {
      button.addEventListener('click', () => stepMatch(index === 1));
    });
    profkit.keys.add({ root: section, title: lanes.getAttribute('aria-label'), search,
      keys: keysHelp });

    window.addEventListener('profkit:range', ({ detail }) => {
      if (detail.timeline !== id) return;
      show(detail.startNs, detail.endNs, true);
      root.closest('figure, section').scrollIntoView({ block: 'start' });
      lanes.focus({ preventScroll: true });
    });
    window.addEventListener('profkit:theme', () => {
      drawLegend();
      draw();
    });

    /** Make the timeline as wide as the window, whatever the width of the text. */
    function fit() {
      const { clientWidth } = document.documentElement;
      const wide = Math.max(root.parentElement.clientWidth, clientWidth - 64);
      root.style.setProperty('--wide', `${wide}px`);
    }
    window.addEventListener('resize', fit);
    // A printed canvas cannot be drawn again: it is drawn with the width and colours of the paper.
    const paintNow = () => {
      drawNames();
      paint();
    };
    window.addEventListener('beforeprint', () => {
      root.dataset.printed = '';
      lanes.style.height = `${lanes.clientHeight}px`;
      paintNow();
    });
    window.addEventListener('afterprint', () => {
      delete root.dataset.printed;
      lanes.style.height = '';
      paintNow();
    });
    new ResizeObserver(() => {
      drawNames();
      draw();
    }).observe(lanes);
    fit();
    drawNames();
    drawLegend();
    offerFindings();
  };
  for (const view of document.querySelectorAll('.timeline')) run(view.closest('section').id);
})();
