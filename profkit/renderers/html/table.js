'use strict';
/** Tables that sort and search. The HTML has their first rows, `data-<section>` has all. */
(() => {
  const spelled = {
    ns: profkit.formatNs,
    bytes: profkit.formatBytes,
    count: profkit.formatCount,
    share: profkit.formatShare,
    number: profkit.formatNumber,
  };
  const collator = new Intl.Collator('en');
  const hasTimeline = document.getElementById('timeline') !== null;

  /** One table on the page. */
  class SortedTable {
    constructor(figure, { kinds, rows, sortedBy, ranges, hints, pageRows }) {
      this.figure = figure;
      this.kinds = kinds;
      this.rows = rows;
      this.ranges = hasTimeline ? ranges : [];
      this.hints = hints;
      this.pageRows = pageRows;
      this.sorted = { column: sortedBy, descending: true };
      this.shown = rows.map((_, place) => place);
      this.page = 0;
      this.body = figure.querySelector('tbody');
      this.status = figure.querySelector('.rows');
      this.title = figure.querySelector('h3').textContent;
      figure.querySelector('.more')?.remove();
      this.addSorting();
      if (rows.length > 3) this.addSearch();
      if (rows.length > pageRows) this.addPager();
      this.draw();
    }

    addSorting() {
      this.headings = [...this.figure.querySelectorAll('thead th')];
      this.headings.forEach((heading, column) => {
        const button = profkit.element('button', { type: 'button' }, heading.textContent);
        if (heading.title) {
          button.dataset.tip = heading.title;
          heading.removeAttribute('title');
        }
        button.addEventListener('click', () => this.sort(column));
        heading.replaceChildren(button);
      });
    }

    addSearch() {
      const label = `Search ${this.title}`;
      const input = profkit.element('input', {
        type: 'search', class: 'search', placeholder: 'Search', 'aria-label': label,
        spellcheck: 'false', autocomplete: 'off',
      });
      input.addEventListener('input', () => this.search(input.value));
      this.figure.querySelector('figcaption').append(input);
    }

    addPager() {
      const button = (text, label, step) => {
        const made = profkit.element('button', { type: 'button', 'aria-label': label }, text);
        made.addEventListener('click', () => this.turn(step));
        return made;
      };
      this.back = button('‹ Back', `Previous rows of ${this.title}`, -1);
      this.next = button('Next ›', `Next rows of ${this.title}`, 1);
      this.place = profkit.element('span');
      this.size = profkit.element('select', { 'aria-label': `Rows of ${this.title} at once` });
      for (const n of [this.pageRows, 50, 200]) {
        this.size.append(profkit.element('option', { value: String(n) }, `${n} rows`));
      }
      this.size.addEventListener('change', () => {
        this.pageRows = Number(this.size.value);
        this.page = 0;
        this.draw();
      });
      const pager = profkit.element('div', { class: 'pager' });
      pager.append(this.back, this.next, this.place, this.size);
      this.figure.append(pager);
    }

    /** Keep the rows that hold every word. */
    search(text) {
      const words = text.toLowerCase().split(/\s+/).filter((word) => word);
      this.lower = this.lower ?? this.rows.map((row, place) => [...row, this.hints[place]]
        .filter((cell) => typeof cell === 'string').join(' ').toLowerCase());
      this.shown = [];
      this.lower.forEach((row, place) => {
        if (words.every((word) => row.includes(word))) this.shown.push(place);
      });
      this.order();
    }

    /** Sort by a column: figures fall first, names rise first; once more turns it round. */
    sort(column) {
      const again = this.sorted.column === column;
      const descending = again ? !this.sorted.descending : this.kinds[column] in spelled;
      this.sorted = { column, descending };
      this.order();
    }

    order() {
      const { column, descending } = this.sorted;
      if (column === null) {
        this.shown.sort((a, b) => a - b);
      } else {
        const sign = descending ? -1 : 1;
        this.shown.sort((a, b) => {
          const [one, other] = [this.rows[a][column], this.rows[b][column]];
          // What is not known comes last, whichever way the rest goes.
          if (one === null || other === null) return (one === null) - (other === null) || a - b;
          if (typeof one === 'number') return sign * (one - other) || a - b;
          return sign * collator.compare(one, other) || a - b;
        });
      }
      this.page = 0;
      this.draw();
    }

    turn(step) {
      this.page += step;
      this.draw();
    }

    draw() {
      const start = this.page * this.pageRows;
      const places = this.shown.slice(start, start + this.pageRows);
      this.body.replaceChildren(...places.map((place) => this.row(place)));
      const [n, all] = [this.shown.length, this.rows.length];
      const [some, every] = [profkit.formatCount(n), profkit.formatCount(all)];
      const rows = all === 1 ? 'row' : 'rows';
      this.status.textContent = n === all ? `${every} ${rows}` : `${some} of ${every} ${rows}`;
      this.headings.forEach((heading, column) => {
        if (column === this.sorted.column) {
          heading.setAttribute('aria-sort', this.sorted.descending ? 'descending' : 'ascending');
        } else {
          heading.removeAttribute('aria-sort');
        }
      });
      if (this.place) this.drawPager(start, places.length);
    }

    drawPager(start, n) {
      const from = profkit.formatCount(n ? start + 1 : 0);
      const to = profkit.formatCount(start + n);
      this.place.textContent = `${from} to ${to} of ${profkit.formatCount(this.shown.length)}`;
      this.back.disabled = start === 0;
      this.next.disabled = start + n >= this.shown.length;
    }

    row(place) {
      const cells = this.rows[place].map((value, column) => {
        const kind = this.kinds[column];
        const isFigure = kind in spelled;
        let text = value === null ? '' : String(value);
        if (isFigure) text = value === null ? '–' : spelled[kind](value);
        return profkit.element('td', { class: kind }, text);
      });
      const [range, whole] = [this.ranges[place], this.hints[place]];
      if (whole && whole !== this.rows[place][0]) {
        const attributes = { class: 'short', tabindex: '0', 'data-tip': whole };
        cells[0].replaceChildren(profkit.element('span', attributes, this.rows[place][0]));
      }
      if (range) cells[0].append(' ', this.go(range, this.rows[place][0]));
      return profkit.element('tr', {}, ...cells);
    }

    go([startNs, endNs], name) {
      return profkit.element('button', {
        type: 'button', class: 'go', 'aria-label': `Show ${name} on the timeline`,
        'data-start-ns': String(startNs), 'data-end-ns': String(endNs), 'data-label': String(name),
      }, 'timeline');
    }
  }

  for (const section of document.querySelectorAll('main > section')) {
    const tables = profkit.data(section.id)?.tables ?? {};
    for (const [id, data] of Object.entries(tables)) {
      new SortedTable(document.getElementById(id), data);
    }
  }
})();
