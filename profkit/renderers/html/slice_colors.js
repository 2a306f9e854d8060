'use strict';
/** The colours of a timeline's slices: by kind, by module or by name. */
profkit.SliceColors = class {
  static nHues = 24;

  static nInLegend = 12;

  constructor({ sites, styles }) {
    this.sites = sites;
    this.styles = styles;
    this.by = 'kind';
    this.groups = new Map();
    window.addEventListener('profkit:theme', () => { this.drawn = null; });
  }

  /** Choose what the colours show: `kind`, `module` or `name`. */
  choose(by) {
    this.by = by;
    this.drawn = null;
  }

  /** Return the texts of a column, by time, and the group of each site. */
  grouped() {
    const column = this.by === 'module' ? 'module' : 'short';
    if (this.groups.has(column)) return this.groups.get(column);

    const { sites } = this;
    const total = new Map();
    sites[column].forEach((text, site) => {
      const ns = sites.isPath[site] ? 0 : sites.totalNs[site];
      total.set(text, (total.get(text) ?? 0) + ns);
    });

    const texts = [...total.keys()].filter((text) => text !== 0)
      .sort((a, b) => total.get(b) - total.get(a) || a - b);
    const rank = new Map(texts.map((text, index) => [text, index]));
    const groups = { texts, of: sites[column].map((text) => rank.get(text) ?? -1) };
    this.groups.set(column, groups);
    return groups;
  }

  /** Return a colour as `#rrggbb`: neighbours are far apart, and each theme has its lightness. */
  static hue(index) {
    const isDark = document.documentElement.dataset.theme === 'dark';
    // Steps of the golden angle spread hues evenly, however many there are.
    const hue = (210 + (index % profkit.SliceColors.nHues) * 137.5) % 360;
    const lightness = (isDark ? 0.62 : 0.52) + (index % 3) * 0.07;
    const chroma = 0.55 * Math.min(lightness, 1 - lightness);

    // From HSL to RGB: https://www.w3.org/TR/css-color-4/#hsl-to-rgb
    const part = (n) => {
      const k = (n + hue / 30) % 12;
      const value = lightness - chroma * Math.max(-1, Math.min(k - 3, 9 - k, 1));
      return Math.round(255 * value).toString(16).padStart(2, '0');
    };
    return `#${part(0)}${part(8)}${part(4)}`;
  }

  /** Return a pattern to draw over a colour, so that colour is not the only sign. */
  static tile(context, pattern, color) {
    if (pattern === 'plain') return null;
    const square = document.createElement('canvas');
    square.width = 8;
    square.height = 8;
    const pen = square.getContext('2d');
    pen.globalAlpha = 0.4;
    pen.strokeStyle = color;
    pen.fillStyle = color;
    pen.lineWidth = 2;

    if (pattern === 'stripes') {
      for (const shift of [-8, 0, 8]) {
        pen.moveTo(shift, 8);
        pen.lineTo(shift + 8, 0);
      }
      pen.stroke();
    } else {
      pen.fillRect(1, 1, 2, 2);
      pen.fillRect(5, 5, 2, 2);
    }

    return context.createPattern(square, 'repeat');
  }

  /** Return fill, readable text colour and pattern of each site, cached until a choice changes. */
  ofSites(context) {
    if (this.drawn) return this.drawn;
    const { tile, hue } = profkit.SliceColors;
    const { textColorOn } = profkit.canvas;
    const styled = this.styles.map(({ color, pattern }) => {
      const fill = profkit.color(color);
      const text = textColorOn(fill);
      return { fill, text, tile: tile(context, pattern, text) };
    });
    this.drawn = this.sites.style.map((style) => styled[style]);

    if (this.by !== 'kind') {
      const ungrouped = profkit.color('--series-8');
      const byGroup = new Map();
      const { of } = this.grouped();
      this.drawn = of.map((group, site) => {
        const key = `${group}/${this.sites.style[site]}`;
        if (!byGroup.has(key)) {
          const fill = group < 0 ? ungrouped : hue(group);
          byGroup.set(key, { ...styled[this.sites.style[site]], fill, text: textColorOn(fill) });
        }
        return byGroup.get(key);
      });
    }
    return this.drawn;
  }

  /** Return label, CSS colour and pattern of each entry of the legend. */
  legend() {
    if (this.by === 'kind') {
      return this.styles.map(({ label, color, pattern }) => (
        { label, color: `var(${color})`, pattern }));
    }

    const { texts } = this.grouped();
    const shown = texts.slice(0, profkit.SliceColors.nInLegend).map((text, index) => ({
      label: this.sites.texts[text], color: profkit.SliceColors.hue(index), pattern: 'plain' }));
    const nMore = texts.length - shown.length;
    if (nMore) shown.push({ label: `and ${profkit.formatCount(nMore)} more` });
    if (this.by === 'module') {
      shown.push({ label: 'outside modules', color: 'var(--series-8)', pattern: 'plain' });
    }
    return shown;
  }
};
