'use strict';
/** Tables that sort and search. The HTML has the first rows, `data-<section>` has all. */
(() => {
  const formats = {
    ns: profkit.formatNs,
    bytes: profkit.formatBytes,
    count: profkit.formatCount,
    share: profkit.formatShare,
    number: profkit.formatNumber,
  };
  const collator = new Intl.Collator('en', { numeric: true });
  const hasTimeline = document.getElementById('timeline') !== null;

  /** One table: adds sorting, search and paging to a figure with a heading and a table. */
  profkit.SortableTable = class {
    constructor(figure, { kinds, rows, sortedBy, ranges, hints, pageRows }) {
      this.figure = figure;
      this.kinds = kinds;
      this.rows = rows;
      this.ranges = hasTimeline ? ranges : [];
      this.hints = hints;
      this.pageRows = pageRows;
      this.sorted = { column: sortedBy, descending: true };
      this.visible = rows.map((_, index) => index);
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
        const turner = profkit.element('button', { type: 'button', 'aria-label': label }, text);
        turner.addEventListener('click', () => this.turn(step));
        return turner;
      };
      this.back = button('‹ Back', `Previous rows of ${this.title}`, -1);
      this.next = button('Next ›', `Next rows of ${this.title}`, 1);
      this.position = profkit.element('span');

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
      pager.append(this.back, this.next, this.position, this.size);
      this.figure.append(pager);
    }

    /** Show the rows that contain every word. */
    search(text) {
      const words = text.toLowerCase().split(/\s+/).filter((word) => word);
      // Texts in lower case are made at the first search: most tables are never searched.
      this.lower = this.lower ?? this.rows.map((row, index) => [...row, this.hints[index]]
        .filter((cell) => typeof cell === 'string').join(' ').toLowerCase());
      this.visible = [];
      this.lower.forEach((row, index) => {
        if (words.every((word) => row.includes(word))) this.visible.push(index);
      });
      this.order();
    }

    /** Sort by a column: figures descending, names ascending; the same column again reverses. */
    sort(column) {
      const isSame = this.sorted.column === column;
      const descending = isSame ? !this.sorted.descending : this.kinds[column] in formats;
      this.sorted = { column, descending };
      this.order();
    }

    order() {
      const { column, descending } = this.sorted;
      if (column === null) {
        this.visible.sort((a, b) => a - b);
      } else {
        const sign = descending ? -1 : 1;
        this.visible.sort((a, b) => {
          const [first, second] = [this.rows[a][column], this.rows[b][column]];
          // Unknown values come last in either direction.
          if (first === null || second === null) {
            return (first === null) - (second === null) || a - b;
          }
          if (typeof first === 'number') return sign * (first - second) || a - b;
          return sign * collator.compare(first, second) || a - b;
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
      const indices = this.visible.slice(start, start + this.pageRows);
      this.body.replaceChildren(...indices.map((index) => this.row(index)));
      const [n, total] = [this.visible.length, this.rows.length];
      const rows = `${profkit.formatCount(total)} ${total === 1 ? 'row' : 'rows'}`;
      this.status.textContent = n === total ? rows : `${profkit.formatCount(n)} of ${rows}`;

      this.headings.forEach((heading, column) => {
        if (column === this.sorted.column) {
          heading.setAttribute('aria-sort', this.sorted.descending ? 'descending' : 'ascending');
        } else {
          heading.removeAttribute('aria-sort');
        }
      });

      if (this.position) this.drawPager(start, indices.length);
    }

    drawPager(start, n) {
      const from = profkit.formatCount(n ? start + 1 : 0);
      const to = profkit.formatCount(start + n);
      this.position.textContent = `${from} to ${to} of ${profkit.formatCount(this.visible.length)}`;
      this.back.disabled = start === 0;
      this.next.disabled = start + n >= this.visible.length;
    }

    row(index) {
      const cells = this.rows[index].map((value, column) => {
        const kind = this.kinds[column];
        const isFigure = kind in formats;
        let text = value === null ? '' : String(value);
        if (isFigure) text = value === null ? '–' : formats[kind](value);
        return profkit.element('td', { class: kind }, text);
      });

      const [range, full, [first]] = [this.ranges[index], this.hints[index], this.rows[index]];
      if (full && full !== first) {
        const attributes = { class: 'short', tabindex: '0', 'data-tip': full };
        cells[0].replaceChildren(profkit.element('span', attributes, first));
      }
      if (range) cells[0].append(' ', this.timelineButton(range, first));
      return profkit.element('tr', {}, ...cells);
    }

    timelineButton([startNs, endNs], name) {
      return profkit.element('button', {
        type: 'button', class: 'go', 'aria-label': `Show ${name} on the timeline`,
        'data-start-ns': String(startNs), 'data-end-ns': String(endNs), 'data-label': String(name),
      }, 'timeline');
    }
  };

  async function fillTables(section) {
    const tables = (await profkit.storedData(section.id))?.tables ?? {};
    for (const [id, data] of Object.entries(tables)) {
      new profkit.SortableTable(document.getElementById(id), data);
    }
  }
  for (const section of document.querySelectorAll('main > section')) fillTables(section);
})();
