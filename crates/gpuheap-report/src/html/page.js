// The page: one state (trace, moment, trace and moment to compare with), and a function for each part
// that draws the state.
"use strict";

const $ = (id) => document.getElementById(id);
// Colours of the heaviest sites: Paul Tol's "muted" and "light" schemes, told apart by people who
// are colour-blind.
const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99", "#332288", "#997744"];
const OTHERS = "#b8bec8";
const DIM = "#5c6675";
const FAR = 32 * 2 ** 20; // Blocks that are farther apart lie in different ranges of the map.

const state = { traces: [], trace: null, moment: 0, before: null, tab: "held", sort: {} };
let plot = null;
let flames = null;

function amount(bytes) {
  const sign = bytes < 0 ? "−" : "";
  let size = Math.abs(bytes);
  if (size < 1024) return `${sign}${size} B`;
  let unit = -1;
  for (; size >= 1023.995 && unit < 5; unit++) size /= 1024;
  return `${sign}${size.toFixed(2).replace(/\.00$/, "")} ${["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][unit]}`;
}
const grouped = (number) => number.toLocaleString("en-US");
const seconds = (ns) => `${(ns / 1e9).toFixed(3)} s`;
const signed = (bytes) => (bytes > 0 ? "+" : "") + amount(bytes);

function element(name, text, parent) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function tip(event, text) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 8) + "px";
}

async function read() {
  const text = atob($("data").textContent);
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).json();
}

// Sums blocks by a column, at all moments: a row of sums for each group, and its largest sum.
function rows(trace, groups, column) {
  const count = trace.moments.ns.length;
  const { from, until, bytes } = trace.blocks;
  const sums = Array.from({ length: groups }, () => null);
  for (let block = 0; block < from.length; block++) {
    const row = (sums[column[block]] ??= new Float64Array(count + 1));
    row[from[block]] += bytes[block];
    row[until[block]] -= bytes[block];
  }
  for (const row of sums) {
    for (let moment = 1; row && moment < count; moment++) row[moment] += row[moment - 1];
  }
  return sums;
}

// Prepares a trace once: the groups of sites that have a colour, and their sums. A group is a site.
// If sites are sizes, it is a class of sizes, because a program may have hundreds of sizes.
function prepare(trace) {
  const { bytes, site } = trace.blocks;
  const isSize = trace.by === "size";
  const group = new Uint32Array(trace.sites.length);
  for (let block = 0; block < site.length; block++) {
    group[site[block]] = isSize ? Math.floor(Math.log2(bytes[block])) : site[block];
  }
  const name = (group) => (isSize ? `${amount(2 ** group)} to ${amount(2 ** (group + 1))}` : trace.sites[group]);
  const [top, layer, others] = heaviest(trace, Math.max(64, trace.sites.length), site.map((site) => group[site]), COLOURS.length);
  if (isSize) top.sort((a, b) => b - a).forEach((group, index) => (layer[group] = index));
  trace.groups = (site) => (isSize ? [name(group[site]), trace.sites[site]] : [trace.sites[site]]);
  trace.legend = Array.from(top, (group, index) => [COLOURS[index], name(group)]);
  if (others) trace.legend.push([OTHERS, "others"]);
  trace.colour = (site) => COLOURS[layer[group[site]]] ?? OTHERS;
  trace.layers = rows(trace, top.length + 1, site.map((site) => layer[group[site]]));
  // If most events happen in a small part of the time, an axis of events shows more.
  const { ns } = trace.moments;
  const busy = ns[Math.floor(ns.length * 0.9)] - ns[Math.floor(ns.length * 0.1)];
  trace.byEvent = busy < (ns.at(-1) - ns[0]) / 4;
}

// Returns the groups of a column with the most bytes over the moments, the place of each group among
// them, and the number of other groups.
function heaviest(trace, groups, column, most) {
  const { from, until, bytes } = trace.blocks;
  const weight = new Float64Array(groups);
  for (let block = 0; block < bytes.length; block++) {
    weight[column[block]] += bytes[block] * (until[block] - from[block]);
  }
  const all = order(weight).reverse().filter((group) => weight[group] > 0);
  const top = all.slice(0, most);
  const place = new Uint32Array(groups).fill(top.length);
  top.forEach((group, index) => (place[group] = index));
  return [top, place, all.length - top.length];
}

// Returns the indices of a column, ordered by its values.
function order(column) {
  return Uint32Array.from(column, (_, index) => index).sort((a, b) => column[a] - column[b]);
}

function drawTimeline() {
  const { trace } = state;
  const count = trace.moments.ns.length;
  const { byEvent } = trace;
  const axisOf = ({ moments }) => (byEvent ? moments.event : moments.ns.map((ns) => ns / 1e9));
  const time = axisOf(trace);
  // Layers are sums, the largest first, so that each is drawn over the one before.
  const stacked = [];
  let sum = new Float64Array(count);
  trace.layers.forEach((layer, index) => {
    sum = sum.map((bytes, moment) => bytes + (layer ? layer[moment] : 0));
    if (layer) stacked.unshift({ values: Array.from(sum), colour: COLOURS[index] ?? OTHERS });
  });
  const stepped = uPlot.paths.stepped({ align: 1 });
  const series = stacked.map(({ colour }) => ({ stroke: colour, fill: colour, width: 0, points: { show: false }, paths: stepped }));
  const marks = (u) => {
    const pen = u.ctx;
    const line = (x, colour, dash) => {
      const at = u.valToPos(x, "x", true);
      if (at < u.bbox.left || at > u.bbox.left + u.bbox.width) return;
      pen.save();
      pen.strokeStyle = colour;
      pen.lineWidth = 2 * devicePixelRatio;
      pen.setLineDash(dash);
      pen.beginPath();
      pen.moveTo(at, u.bbox.top);
      pen.lineTo(at, u.bbox.top + u.bbox.height);
      pen.stroke();
      pen.restore();
    };
    for (const failure of trace.failures) line(byEvent ? failure.event : failure.ns / 1e9, "#d1242f", [4, 4]);
    if (state.before?.trace === trace) line(time[state.before.moment], DIM, [6, 4]);
    line(time[state.moment], "#1c2430", []);
  };
  const data = [time, ...stacked.map(({ values }) => values), trace.moments.high];
  // The largest bytes since the moment before: moments hide shorter peaks.
  series.push({ stroke: "#1c2430", width: 1, points: { show: false }, paths: stepped });
  const other = state.before?.trace;
  if (other && other !== trace) {
    const axis = axisOf(other);
    data.push(time.map((at) => (at > axis.at(-1) ? null : other.moments.high[nearest(axis, at)])));
    series.push({ stroke: DIM, width: 2, dash: [6, 4], points: { show: false }, paths: stepped });
  }
  const options = {
    width: $("timeline").clientWidth,
    height: 260,
    legend: { show: false },
    cursor: { points: { show: false }, drag: { x: true, y: false, dist: 4 } },
    scales: { x: { time: false }, y: { range: (u, low, high) => [0, (high || 1) * 1.05] } },
    axes: [
      { values: (u, ticks) => ticks.map((tick) => (byEvent ? grouped(tick) : `${+tick.toFixed(6)} s`)) },
      { size: 80, values: (u, ticks) => ticks.map(amount), splits: (u, axis, low, high) => splits(high) },
    ],
    series: [{}, ...series],
    hooks: { draw: [marks, drawLanes] },
  };
  plot?.destroy();
  plot = new uPlot(options, data, $("timeline"));
  let pressed = 0;
  plot.over.addEventListener("mousedown", (event) => (pressed = event.clientX));
  plot.over.addEventListener("click", (event) => {
    if (Math.abs(event.clientX - pressed) > 4 && event.isTrusted) return; // the end of a drag
    const x = event.clientX - plot.over.getBoundingClientRect().left;
    pick(nearest(time, plot.posToVal(x, "x")));
  });
  plot.over.addEventListener("mousemove", (event) => {
    const x = event.clientX - plot.over.getBoundingClientRect().left;
    const moment = nearest(time, plot.posToVal(x, "x"));
    tip(event, `${seconds(trace.moments.ns[moment])}, event ${grouped(trace.moments.event[moment])}\n${amount(trace.moments.live[moment])} live`);
  });
  plot.over.addEventListener("mouseleave", (event) => tip(event, null));
  $("axis").textContent = byEvent ? "Axis: events" : "Axis: time";
  $("legend").replaceChildren();
  for (const [colour, name] of trace.legend) {
    const entry = element("span", undefined, $("legend"));
    swatch(colour, entry);
    entry.append(name);
  }
}

function swatch(colour, parent) {
  const made = element("span", undefined, parent);
  made.className = "swatch";
  made.style.background = colour;
}

// Returns ticks at round binary sizes.
function splits(high) {
  let step = 1;
  while (high / step > 6) step *= 2;
  const ticks = [];
  for (let tick = 0; tick <= high; tick += step) ticks.push(tick);
  return ticks;
}

function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (sorted[middle] <= value) low = middle;
    else high = middle - 1;
  }
  // Several moments may have the same time. The last of them shows the outcome.
  const next = low + 1;
  return next < sorted.length && sorted[next] - value < value - sorted[low] ? next : low;
}

// Calls `visit` with each block that is live at a moment.
function live(trace, moment, visit) {
  const { from, until } = trace.blocks;
  for (let block = 0; block < from.length; block++) {
    if (from[block] <= moment && moment < until[block]) visit(block);
  }
}

// Sums blocks of a moment by a column, keyed by the name of the site or thread.
function sums({ trace, moment, is }, column) {
  const found = [];
  const { bytes, kind, stack } = trace.blocks;
  live(trace, moment, (block) => {
    if (is && !is(block)) return;
    const sum = (found[trace.blocks[column][block]] ??= { bytes: 0, blocks: 0, kinds: new Set(), modules: new Set() });
    sum.bytes += bytes[block];
    sum.blocks++;
    if (kind.length) sum.kinds.add(trace.kinds[kind[block]]);
    sum.modules.add(trace.modules[trace.stack_modules[stack[block]]]);
  });
  const names = column === "site" ? trace.sites : trace.threads.map(({ name }) => name);
  return new Map(found.map((sum, group) => [names[group], { ...sum, group }]).filter((entry) => entry));
}

// Each tab: its title, its columns, and its rows as arrays of values. A column is a name, and how a
// value is written. The last column is the name.
const TABS = {
  held: {
    title: () => "Held at the moment",
    rows(trace) {
      const heading = trace.by === "line" ? "Line of the program" : "Size of blocks";
      return holders(state, state.before, "site", heading, "Nothing was live at this moment.");
    },
  },
  threads: {
    title: () => "By thread",
    isThere: (trace) => trace.threads.length > 0,
    rows: () => holders(state, state.before, "thread", "Thread that allocated", "Nothing was live at this moment."),
  },
  left: {
    title: () => "Left at the end",
    rows: (trace) => left(trace, false, "Nothing: the program freed every block."),
  },
  libraries: {
    title: () => "Left by libraries",
    isThere: (trace) => trace.of_library.includes(true),
    rows: (trace) => left(trace, true, "Nothing: every block was freed."),
  },
  growth: {
    title: () => "Growing",
    rows: (trace) => ({
      columns: [["Grew by", amount], ["From", amount], ["To", amount], ["Rises", (rises) => `${rises} of 6`], ["Steady", (steady) => (steady ? "yes" : "no")], ["Site"], ["Thread"], ["Called from"]],
      rows: trace.growth.map(({ bytes, first, last, rises, steady, site, thread, callers }) => [bytes, first, last, rises, steady, site, thread, callers]),
      by: 4,
      empty: "Nothing kept more memory after the first quarter of the events.",
    }),
  },
  temporary: {
    title: () => "Freed at once",
    rows: (trace) => ({
      columns: [["Allocations", grouped], ["Bytes", amount], ["Largest", amount], ["Site"], ["Called from"]],
      rows: trace.temporary.map(({ allocations, bytes, largest_bytes: largest, site, caller }) => [allocations, bytes, largest, site, caller ?? ""]),
      empty: "No block was freed at once.",
    }),
  },
};

// Returns the rows of blocks at the end: of NVIDIA's libraries, or of all other code.
function left(trace, ofLibrary, empty) {
  const at = (trace) => ({ ...atEnd(trace), is: (block) => trace.of_library[trace.blocks.stack[block]] === ofLibrary });
  const other = state.before?.trace;
  const before = other && other !== trace ? at(other) : null;
  return holders(at(trace), before, "site", "Site", empty);
}

const atEnd = (trace) => ({ trace, moment: trace.moments.ns.length - 1 });
const atPeak = (trace) => ({ trace, moment: trace.peak });

function holders(at, before, column, heading, empty) {
  const { trace } = at;
  const now = sums(at, column);
  const then = before && sums(before, column);
  const total = trace.moments.live[at.moment];
  const nothing = { bytes: 0, blocks: 0, kinds: new Set(), modules: new Set() };
  const columns = [["Live", amount], ["Share", (share) => `${share.toFixed(1)} %`], ["Blocks", grouped]];
  if (then) columns.splice(1, 0, ["Change", signed]);
  if (trace.kinds.length) columns.push(["Kind"]);
  if (trace.modules.length) columns.push(["Module"]);
  columns.push([heading]);
  const rows = Array.from(new Set([...now.keys(), ...(then?.keys() ?? [])]), (name) => {
    const sum = now.get(name) ?? nothing;
    const old = then?.get(name) ?? nothing;
    const row = [sum.bytes, total ? (sum.bytes / total) * 100 : 0, sum.blocks];
    const joined = (field) => [...(sum.blocks ? sum : old)[field]].filter((text) => text).sort().join(", ");
    if (then) row.splice(1, 0, sum.bytes - old.bytes);
    if (trace.kinds.length) row.push(joined("kinds"));
    if (trace.modules.length) row.push(joined("modules"));
    row.push(name);
    row.colour = column === "site" ? (sum.blocks ? trace.colour(sum.group) : OTHERS) : null;
    return row;
  });
  return { columns, rows, by: then ? 1 : 0, empty };
}

const SHOWN = 500; // Rows of a table; searching reaches the others.

function drawTable() {
  const { trace, tab } = state;
  const { columns, rows: all, by = 0, empty } = TABS[tab].rows(trace);
  const last = columns.length - 1;
  const key = tab + columns.length;
  const { column, down } = (state.sort[key] ??= { column: by, down: true });
  const wanted = $("search").value.toLowerCase();
  const texts = (row) => row.filter((value) => typeof value === "string").join("\n");
  const found = all.filter((row) => texts(row).toLowerCase().includes(wanted));
  const isText = !columns[column][1];
  const compare = (a, b) => (isText ? b[column].localeCompare(a[column]) : a[column] - b[column]);
  const isChange = columns[column][0] === "Change";
  const size = (row) => Math.abs(row[column]);
  found.sort((a, b) => (isChange ? size(a) - size(b) : compare(a, b)) * (down ? -1 : 1) || b[0] - a[0]);
  const box = $("table");
  box.replaceChildren();
  if (!all.length) return void (element("div", empty, box).className = "empty");
  const table = element("table", undefined, box);
  const head = element("tr", undefined, element("thead", undefined, table));
  columns.forEach(([name], index) => {
    const cell = element("th", name + (index === column ? (down ? " ▾" : " ▴") : ""), head);
    cell.addEventListener("click", () => {
      state.sort[key] = { column: index, down: index === column ? !down : true };
      drawTable();
    });
  });
  const body = element("tbody", undefined, table);
  for (const row of found.slice(0, SHOWN)) {
    const line = element("tr", undefined, body);
    columns.forEach(([, written], index) => {
      const cell = element("td", undefined, line);
      if (!written) cell.className = "name";
      if (index === last && row.colour) swatch(row.colour, cell);
      cell.append(written ? written(row[index]) : row[index]);
    });
  }
  if (found.length > SHOWN) {
    element("div", `${grouped(found.length - SHOWN)} more: search for them.`, box).className = "empty";
  }
}

function drawTabs() {
  $("tabs").replaceChildren();
  for (const [name, tab] of Object.entries(TABS)) {
    if (tab.isThere && !tab.isThere(state.trace)) continue;
    const button = element("button", tab.title(), $("tabs"));
    button.setAttribute("role", "tab");
    button.setAttribute("aria-selected", String(name === state.tab));
    button.addEventListener("click", () => {
      state.tab = name;
      drawTabs();
      drawTable();
    });
  }
}

// Builds the tree of frames. Without stacks, each size is a frame within its class.
function tree() {
  const node = (name, parent, site) => ({ name, parent, site, bytes: 0, before: state.before ? 0 : null, children: new Map() });
  const root = node("all", null);
  const add = ({ trace, moment }, field) =>
    live(trace, moment, (block) => {
      const bytes = trace.blocks.bytes[block];
      const site = trace.blocks.site[block];
      const frames = trace.stacks[trace.blocks.stack[block]];
      const names = frames.length ? frames.map((frame) => trace.frames[frame]) : trace.groups(site);
      let at = root;
      at[field] += bytes;
      for (const name of names) {
        let child = at.children.get(name);
        if (!child) at.children.set(name, (child = node(name, at, site)));
        child[field] += bytes;
        at = child;
      }
    });
  add(state, "bytes");
  if (state.before) add(state.before, "before");
  return root;
}

function drawFlames() {
  const root = tree();
  const total = root.bytes || 1;
  const most = Math.max(...[...walk(root)].map((node) => Math.abs(node.bytes - node.before)), 1);
  const colour = (node) => {
    if (node.before !== null) {
      const change = (node.bytes - node.before) / most;
      const light = 96 - 36 * Math.min(1, Math.abs(change));
      return change === 0 ? "#e6e9ee" : `hsl(${change > 0 ? 8 : 212} 85% ${light}%)`;
    }
    if (node === root) return "#e6e9ee";
    let hash = 0;
    for (const letter of node.name) hash = (hash * 31 + letter.charCodeAt(0)) >>> 0;
    return `hsl(${20 + (hash % 35)} 85% ${72 + (hash % 12)}%)`;
  };
  const describe = (node) => {
    const change = node.before === null ? "" : `, ${signed(node.bytes - node.before)}`;
    return `${node.name}\n${amount(node.bytes)} (${((node.bytes / total) * 100).toFixed(1)} %)${change}`;
  };
  $("flames-title").textContent = state.before ? "Flame graph of the difference: red grew, blue shrank" : "Flame graph of the moment";
  flames.show(root, describe, colour);
}

function* walk(node) {
  yield node;
  for (const child of node.children.values()) yield* walk(child);
}

// Lists ranges of addresses at the moment: those that the allocator held, or else runs of blocks
// that lie near each other.
function layout(trace, moment) {
  const { address, bytes, site } = trace.blocks;
  const blocks = [];
  live(trace, moment, (block) => blocks.push(block));
  blocks.sort((a, b) => address[a] - address[b]);
  let ranges = trace.ranges
    .filter(([, , from, until]) => from <= moment && moment < until)
    .map(([start, size]) => ({ start, end: start + size }))
    .sort((a, b) => a.start - b.start);
  const isHeld = ranges.length > 0;
  if (!isHeld) {
    for (const block of blocks) {
      const last = ranges[ranges.length - 1];
      const end = address[block] + bytes[block];
      if (last && address[block] - last.end <= FAR) last.end = Math.max(last.end, end);
      else ranges.push({ start: address[block], end });
    }
  }
  let index = 0, held = 0, largest = 0, pieces = 0, used = 0;
  const pieceOf = [];
  for (const range of ranges) {
    held += range.end - range.start;
    let at = range.start;
    const free = (end) => {
      if (end - at < 512) return;
      largest = Math.max(largest, end - at);
      pieces++;
    };
    while (index < blocks.length && address[blocks[index]] < range.start) index++;
    for (; index < blocks.length && address[blocks[index]] < range.end; index++) {
      const block = blocks[index];
      free(address[block]);
      const end = Math.min(address[block] + bytes[block], range.end);
      pieceOf.push({ range, start: address[block], end, block, site: site[block] });
      used += Math.max(0, end - Math.max(at, address[block]));
      at = Math.max(at, end);
    }
    free(range.end);
  }
  return { ranges, blocks: pieceOf, isHeld, held, used, largest, pieces };
}

let mapped = null;

function drawMap() {
  const { trace } = state;
  const found = layout(trace, state.moment);
  const canvas = $("map");
  const row = 14;
  const rowCount = Math.min(24, Math.max(4, Math.ceil(Math.sqrt(found.ranges.length)) + 8));
  const width = canvas.clientWidth;
  const pen = sharp(canvas, rowCount * row);
  const perRow = Math.max(1, found.held / rowCount);
  let offset = 0;
  for (const range of found.ranges) {
    range.offset = offset;
    offset += range.end - range.start;
  }
  const draw = (from, to, colour, isEdge) => {
    pen.fillStyle = colour;
    for (let line = Math.floor(from / perRow); line < rowCount && line * perRow < to; line++) {
      const start = Math.max(from, line * perRow), end = Math.min(to, (line + 1) * perRow);
      const x = ((start - line * perRow) / perRow) * width;
      pen.fillRect(x, line * row, Math.max(((end - start) / perRow) * width, 0.5), row - 2);
    }
    if (isEdge) {
      const line = Math.min(Math.floor(isEdge.at / perRow), rowCount - 1);
      pen.fillStyle = "#1c2430";
      pen.fillRect(((isEdge.at - line * perRow) / perRow) * width, line * row, 1, row - 2);
    }
  };
  for (const range of found.ranges) draw(range.offset, range.offset + range.end - range.start, "#eceff3");
  for (const { range, start, end, site } of found.blocks) {
    draw(range.offset + start - range.start, range.offset + end - range.start, trace.colour(site));
  }
  for (const range of found.ranges) draw(0, 0, "", { at: range.offset });
  mapped = { found, perRow, row, width };
  const free = found.held - found.used;
  $("map-facts").textContent = found.held === 0
    ? "Nothing was held at this moment."
    : `${found.isHeld ? "Held by the allocator" : "From the first to the last block of each range"}: ` +
      `${amount(found.held)} in ${grouped(found.ranges.length)} ranges. In use: ${amount(found.used)}. ` +
      `Gaps (grey): ${amount(free)} in ${grouped(found.pieces)} pieces, the largest ${amount(found.largest)}. ` +
      `Colours as in the table; a black line begins a range.`;
}

function onMap(event) {
  const { found, perRow, row, width } = mapped;
  const at = (Math.floor(event.offsetY / row) + event.offsetX / width) * perRow;
  const range = found.ranges.findLast((range) => range.offset <= at);
  if (!range) return tip(event, null);
  const address = range.start + at - range.offset;
  const piece = found.blocks.find((piece) => piece.range === range && piece.start <= address && address < piece.end);
  const place = `0x${Math.floor(address).toString(16)}`;
  if (!piece) return tip(event, `free at ${place}`);
  tip(event, `${amount(piece.end - piece.start)} at 0x${piece.start.toString(16)}\n${state.trace.sites[piece.site]}`);
}

const LANES = 40; // Threads with a lane; the table has all.

// Draws the lanes below the timeline `u`, over the same part of the axis, if that part is new.
function drawLanes(u) {
  const { trace } = state;
  const part = `${u.scales.x.min} ${u.scales.x.max}`;
  if (u.lanes === part) return;
  u.lanes = part;
  const box = $("lanes");
  box.replaceChildren();
  if (trace.threads.length < 2) return;
  const { ns, event } = trace.moments;
  const axis = trace.byEvent ? event : ns.map((ns) => ns / 1e9);
  trace.lanes ??= heaviest(trace, trace.threads.length, trace.blocks.thread, LANES);
  const [shown, place, others] = trace.lanes;
  trace.laneSums ??= rows(trace, shown.length + 1, trace.blocks.thread.map((thread) => place[thread]));
  const high = trace.laneSums.map((row) => (row ? row.reduce((most, bytes) => Math.max(most, bytes), 0) : 0));
  const most = Math.max(...high.slice(0, shown.length), 1);
  const left = u.bbox.left / devicePixelRatio;
  const x = (at) => u.valToPos(at, "x");
  for (const [index, thread] of shown.entries()) {
    const { name, ended_ns: ended } = trace.threads[thread];
    const lane = element("div", undefined, box);
    lane.className = "lane";
    lane.style.paddingLeft = `${left}px`;
    lane.style.paddingRight = `${u.width - left - u.bbox.width / devicePixelRatio}px`;
    const canvas = element("canvas", undefined, lane);
    element("span", `${name}: ${amount(high[index])} at most`, lane);
    const pen = sharp(canvas, 22);
    const width = canvas.clientWidth;
    pen.fillStyle = COLOURS[0];
    for (let moment = 0; moment < axis.length; moment++) {
      const height = (trace.laneSums[index][moment] / most) * 20;
      const end = moment + 1 < axis.length ? x(axis[moment + 1]) : width;
      pen.fillRect(x(axis[moment]), 21 - height, Math.max(end - x(axis[moment]), 0.5), height);
    }
    if (ended !== null) {
      pen.fillStyle = "#d1242f";
      const at = x(trace.byEvent ? event[nearest(ns, ended)] : ended / 1e9);
      pen.fillRect(Math.min(at, width - 2), 0, 2, 22);
    }
    canvas.title = ended === null ? name : `${name}: the red line is its end`;
    canvas.addEventListener("click", (event) => pick(nearest(axis, u.posToVal(event.offsetX, "x"))));
  }
  if (others) {
    element("p", `${grouped(others)} threads that held less are in the table.`, box).className = "hint";
  }
}

function drawMoment() {
  const { trace, moment, before } = state;
  const { ns, event, live } = trace.moments;
  const name = moment === trace.peak ? "Peak: " : moment === ns.length - 1 ? "End: " : "";
  const then = before?.trace.moments;
  const of = before && before.trace !== trace ? ` of ${before.trace.name}` : "";
  const since = before ? `, ${signed(live[moment] - then.live[before.moment])} since event ${grouped(then.event[before.moment])}${of}` : "";
  $("moment").textContent = `${name}${amount(live[moment])} live at event ${grouped(event[moment])}, ${seconds(ns[moment])} in${since}`;
  $("unpin").hidden = !before;
}

function pick(moment) {
  state.moment = Math.max(0, Math.min(moment, state.trace.moments.ns.length - 1));
  history.replaceState(null, "", "#event=" + state.trace.moments.event[state.moment]);
  plot.redraw(false);
  drawMoment();
  drawTable();
  drawFlames();
  drawMap();
}

function compare(before) {
  state.before = before;
  drawTimeline();
  pick(state.moment);
}

function show(trace) {
  state.trace = trace;
  // A page of a comparison opens with the difference to the same device of the earlier recording.
  if (trace.before !== null) state.before = atPeak(state.traces[trace.before]);
  state.sort = {};
  if (!trace.legend) prepare(trace);
  if (state.before && !state.before.trace.legend) prepare(state.before.trace);
  $("name").textContent = `${trace.name}, ${trace.device}`;
  const out = trace.left_out[0] ? ` ${grouped(trace.left_out[0])} small blocks (${amount(trace.left_out[1])}) are in no chart.` : "";
  const failed = trace.failures.length ? ` Red lines: requests that failed (${grouped(trace.failures.length)}).` : "";
  const sites = trace.by === "line" ? "" : " The recording has no stacks: sites are sizes of blocks.";
  $("facts").textContent = `${amount(trace.moments.live[trace.peak])} at the peak, ${amount(trace.moments.live.at(-1))} at the end.${failed}${sites}${out}`;
  $("note").textContent = trace.note ?? "";
  $("text").textContent = trace.text;
  drawTabs();
  drawTimeline();
  const wanted = /^#event=(\d+)$/.exec(location.hash);
  const linked = wanted ? nearest(trace.moments.event, Number(wanted[1])) : trace.peak;
  pick(linked);
}

async function main() {
  state.traces = await read();
  flames = new Flames($("flames"), tip);
  const choice = $("trace");
  state.traces.forEach((trace, index) => (element("option", `${trace.name}, ${trace.device}`, choice).value = index));
  choice.hidden = state.traces.length < 2;
  choice.addEventListener("change", () => show(state.traces[choice.value]));
  $("search").addEventListener("input", drawTable);
  // Moments of two recordings are compared at the peak of both, or at the end of both.
  const go = (moment) => {
    const { trace, before } = state;
    if (before && before.trace !== trace) state.before = moment(before.trace);
    pick(moment(trace).moment);
  };
  $("go-peak").addEventListener("click", () => go(atPeak));
  $("go-end").addEventListener("click", () => go(atEnd));
  $("pin").addEventListener("click", () => compare({ trace: state.trace, moment: state.moment }));
  $("axis").addEventListener("click", () => {
    state.trace.byEvent = !state.trace.byEvent;
    drawTimeline();
  });
  $("unpin").addEventListener("click", () => compare(null));
  $("map").addEventListener("mousemove", onMap);
  $("map").addEventListener("mouseleave", (event) => tip(event, null));
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && event.target.tagName !== "INPUT") pick(state.moment + step);
  });
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (width === window.innerWidth) return;
    width = window.innerWidth;
    drawTimeline();
    pick(state.moment);
  });
  show(state.traces[0]);
  document.body.dataset.ready = "true";
}

main().catch((error) => {
  $("facts").textContent = `This report cannot be shown: ${error}. It needs a browser of 2023 or later.`;
  console.error(error);
});
