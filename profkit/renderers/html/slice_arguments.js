'use strict';
/** What a recorded event has besides its times: its arguments, its launch and what it launched. */
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

  /** Values of differences to the last value, positive and negative in turn; NaN for none. */
  static summed(differences) {
    let value = 0;
    return differences.map((written) => {
      if (written === 0) return NaN;
      const by = written - 1;
      value += by % 2 ? -(by + 1) / 2 : by / 2;
      return value;
    });
  }

  /** The slice of the call that launched a slice, or -1. */
  launchOf(slice) {
    const launch = this.columns?.launch?.[slice];
    return launch >= 0 ? launch : -1;
  }

  /** The slices that a call launched. */
  launchedBy(slice) {
    return this.launched?.get(slice) ?? [];
  }

  /** Arguments as pairs of a label and a value. */
  of(slice) {
    if (!this.columns) return [];
    const { texts, sets, isWhole } = this.packed;
    const shared = sets[(this.columns.set?.[slice] ?? 0) - 1] ?? [];
    const found = [];
    for (let i = 0; i < shared.length; i += 2) found.push([texts[shared[i]], texts[shared[i + 1]]]);
    for (const [name, label] of Object.entries(profkit.SliceArguments.labels)) {
      const column = this.columns[name] ?? [];
      // A correlation that the launch has is not repeated.
      const launch = name === 'correlation' ? this.launchOf(slice) : -1;
      const value = [column[slice], column[launch]].find((each) => Number.isFinite(each));
      if (value !== undefined) found.push([label, String(value)]);
    }
    if (!isWhole) found.push(['Other arguments', 'left out to limit the size of the page']);
    return found;
  }
};
