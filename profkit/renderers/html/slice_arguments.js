'use strict';
/** The arguments of recorded events, and the links between launches and device work. */
profkit.SliceArguments = class {
  static labels = { correlation: 'Correlation', externalId: 'External id' };

  constructor({ arguments: packed }) {
    this.packed = packed ?? { texts: [], sets: [], columns: {}, isWhole: true };
    this.reading = null;
  }

  /** Decode everything on first use; afterwards `columns` is set. */
  read() {
    this.reading = this.reading ?? this.decode();
    return this.reading;
  }

  async decode() {
    const columns = {};
    for (const [name, packed] of Object.entries(this.packed.columns)) {
      const [values] = await profkit.unpacked(packed);
      columns[name] = name === 'set' ? values : profkit.SliceArguments.summed(values);
    }

    this.launched = new Map();
    columns.launch?.forEach((launch, slice) => {
      if (Number.isNaN(launch)) return;
      if (!this.launched.has(launch)) this.launched.set(launch, []);
      this.launched.get(launch).push(slice);
    });
    this.columns = columns;
  }

  /** Return values from differences to the last value, in zigzag encoding plus 1; NaN for 0. */
  static summed(differences) {
    let value = 0;
    return differences.map((written) => {
      if (written === 0) return NaN;
      const code = written - 1;
      value += code % 2 ? -(code + 1) / 2 : code / 2;
      return value;
    });
  }

  /** Return the slice of the call that launched a slice, or -1. */
  launchOf(slice) {
    const launch = this.columns?.launch?.[slice];
    return launch >= 0 ? launch : -1;
  }

  /** Return the slices that a call launched. */
  launchedBy(slice) {
    return this.launched?.get(slice) ?? [];
  }

  /** Return arguments as pairs of a label and a value. */
  of(slice) {
    if (!this.columns) return [];
    const { texts, sets, isWhole } = this.packed;
    const shared = sets[(this.columns.set?.[slice] ?? 0) - 1] ?? [];
    const pairs = [];
    for (let i = 0; i < shared.length; i += 2) {
      pairs.push([texts[shared[i]], texts[shared[i + 1]]]);
    }

    for (const [name, label] of Object.entries(profkit.SliceArguments.labels)) {
      const column = this.columns[name] ?? [];
      // A correlation that the launch has is not repeated.
      const launch = name === 'correlation' ? this.launchOf(slice) : -1;
      const value = [column[slice], column[launch]].find(Number.isFinite);
      if (value !== undefined) pairs.push([label, String(value)]);
    }
    if (!isWhole) pairs.push(['Other arguments', 'left out to limit the size of the page']);
    return pairs;
  }
};
