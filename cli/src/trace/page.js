"use strict";
(() => {
  const meta = JSON.parse(document.getElementById("meta").textContent);
  const element = (id) => document.getElementById(id);
  const began = performance.now();

  // ---- The columns ----------------------------------------------------------------
  function column(name, Type) {
    const holder = element(`column-${name}`);
    const text = holder.textContent;
    let bytes;
    if (Uint8Array.fromBase64) {
      bytes = Uint8Array.fromBase64(text);
    } else {
      const binary = atob(text);
      bytes = new Uint8Array(binary.length);
      for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
    }
    holder.remove(); // the text is the larger part
    return new Type(bytes.buffer, 0, bytes.length / Type.BYTES_PER_ELEMENT);
  }
  const tick = Math.floor(meta.span / 4294967296) + 1;
  const time = column("time", Uint32Array);
  const took = column("took", Float32Array);
  const bytes = column("bytes", Float32Array);
  const offset = column("offset", Float32Array);
  const slab = column("slab", Uint16Array);
  const kind = column("kind", Uint8Array);
  const name = column("name", Uint8Array);

  // Kinds share a colour where they are two sides of one thing.
  const CATEGORIES = [
    ["alloc", "allocations", ["alloc"]],
    ["free", "frees", ["free"]],
    ["slab", "slabs", ["grow", "trim"]],
    ["fence", "fences and waits", ["fence", "wait", "record_use"]],
    ["register", "registrations", ["register"]],
    ["deregister", "deregistrations", ["deregister"]],
    ["evict", "evictions", ["evict"]],
    ["invalidate", "invalidations, failures", ["invalidate", "oom"]],
    ["mpi", "MPI on device buffers", ["mpi"]],
  ];
  const N = CATEGORIES.length;
  const categoryOf = new Uint8Array(256);
  meta.kinds.forEach((kind, at) => {
    categoryOf[at] = Math.max(0, CATEGORIES.findIndex((category) => category[2].includes(kind)));
  });
  const ALLOC = meta.kinds.indexOf("alloc");
  const shown = new Array(N).fill(true);

  // Groups of 64 events of a lane: where each begins and ends, and how many of each
  // category it has.
  const GROUP = 64;
  let first = 0, groups = 0;
  const lanes = meta.lanes.map((lane) => {
    const made = { ...lane, first, end: first + lane.events, group: groups, longest: 0 };
    first += lane.events;
    groups += Math.ceil(lane.events / GROUP);
    return made;
  });
  const counts = new Uint8Array(groups * N);
  const spans = (at) => kind[at] !== ALLOC && took[at] > 0; // an allocation's is the block's life
  for (const lane of lanes) {
    for (let at = lane.first; at < lane.end; at++) {
      counts[(lane.group + Math.floor((at - lane.first) / GROUP)) * N + categoryOf[kind[at]]]++;
      if (spans(at) && took[at] > lane.longest) lane.longest = took[at];
    }
  }

  // ---- Text -----------------------------------------------------------------------
  function duration(ns, digits = 3) {
    const [unit, scale] = ns < 1e3 ? ["ns", 1] : ns < 1e6 ? ["µs", 1e3] : ns < 1e9 ? ["ms", 1e6] : ["s", 1e9];
    return `${+(ns / scale).toPrecision(digits)} ${unit}`;
  }
  function size(value) {
    let unit = 0;
    while (value >= 1024 && unit < 4) { value /= 1024; unit++; }
    return `${unit ? +value.toFixed(1) : value} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  }
  const number = (value) => value.toLocaleString("en");

  // ---- The window -----------------------------------------------------------------
  const LEFT = 210, LANE = 26, HEAD = 24;
  const whole = Math.max(meta.span, 1000);
  let from = 0, to = whole, colours, queued = false;
  function look() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    colours = { ink: of("ink"), soft: of("soft"), line: of("line"), stripe: of("stripe"), card: of("card"),
      of: CATEGORIES.map((category) => of(category[0])) };
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    colours.ranks = meta.ranks.map((_, at) =>
      `hsl(${(210 + (at * 360) / Math.max(meta.ranks.length, 5)) % 360} ${dark ? "65% 65%" : "65% 40%"})`);
  }
  function prepare(canvas, height) {
    const ratio = devicePixelRatio || 1, width = canvas.parentElement.clientWidth - padding(canvas.parentElement);
    canvas.style.height = `${height}px`;
    const wanted = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wanted[0] || canvas.height !== wanted[1]) [canvas.width, canvas.height] = wanted;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
    return [pen, width];
  }
  function padding(card) {
    const style = getComputedStyle(card);
    return parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
  }
  function step(range, most) {
    const rough = range / most, power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((by) => by * power).find((step) => step >= rough);
  }
  const xOf = (ns, width) => LEFT + ((ns - from) / (to - from)) * (width - LEFT);
  function times(pen, width, top, bottom, labels) {
    const by = step(to - from, (width - LEFT) / 110);
    // So many digits that two neighbours differ.
    const digits = Math.min(12, Math.max(3, Math.ceil(Math.log10(Math.max(to, 1) / by)) + 1));
    pen.strokeStyle = colours.line;
    pen.fillStyle = colours.soft;
    pen.textAlign = "center";
    for (let at = Math.ceil(from / by) * by; at <= to; at += by) {
      const x = Math.round(xOf(at, width)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, top);
      pen.lineTo(x, bottom);
      pen.stroke();
      if (labels !== undefined && x > LEFT + 20 && x < width - 24) pen.fillText(duration(at, digits), x, labels);
    }
  }
  function fitted(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    while (text && pen.measureText(`${text}…`).width > width) text = text.slice(0, -1);
    return `${text}…`;
  }

  // ---- The timeline ---------------------------------------------------------------
  function lowerBound(lane, ns) {
    let low = lane.first, high = lane.end;
    const wanted = ns / tick;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (time[middle] < wanted) low = middle + 1; else high = middle;
    }
    return low;
  }
  // Calls each(category, count, time) for what begins in the window: whole groups where a
  // group is narrower than a pixel.
  function visit(lane, low, high, perPixel, each) {
    for (let at = low; at < high;) {
      const local = at - lane.first;
      if (local % GROUP === 0 && at + GROUP <= high && (time[at + GROUP - 1] - time[at]) * tick < perPixel) {
        const group = (lane.group + local / GROUP) * N;
        for (let category = 0; category < N; category++) {
          if (counts[group + category]) each(category, counts[group + category], time[at] * tick);
        }
        at += GROUP;
      } else {
        each(categoryOf[kind[at]], 1, time[at] * tick);
        at++;
      }
    }
  }
  function drawLane(pen, lane, y, width) {
    const plot = width - LEFT, perPixel = (to - from) / plot;
    const low = lowerBound(lane, from), high = lowerBound(lane, to + tick);
    const early = lane.longest ? lowerBound(lane, from - lane.longest) : low;
    if (high - early <= plot / 2) {
      // One by one: what took time as long as that, the rest as a line.
      for (let at = early; at < high; at++) {
        const category = categoryOf[kind[at]];
        if (!shown[category]) continue;
        const start = xOf(time[at] * tick, width), end = spans(at) ? xOf(time[at] * tick + took[at], width) : start;
        const left = Math.max(start, LEFT);
        if (end < LEFT) continue;
        pen.fillStyle = colours.of[category];
        pen.fillRect(left, y + 4, Math.max(Math.min(end, width) - left, 1.5), LANE - 8);
      }
      return high - early;
    }
    const columns = Math.ceil(plot), stacks = new Uint32Array(columns * N), sums = new Uint32Array(columns);
    visit(lane, low, high, perPixel, (category, count, at) => {
      if (!shown[category]) return;
      const x = Math.min(columns - 1, Math.max(0, Math.floor((at - from) / perPixel)));
      stacks[x * N + category] += count;
      sums[x] += count;
    });
    let most = 1;
    for (let x = 0; x < columns; x++) if (sums[x] > most) most = sums[x];
    // The height grows with the logarithm; its parts are as the counts.
    for (let x = 0; x < columns; x++) {
      if (!sums[x]) continue;
      const height = (LANE - 6) * (0.2 + (0.8 * Math.log1p(sums[x])) / Math.log1p(most));
      let bottom = y + LANE - 3;
      for (let category = 0; category < N; category++) {
        const part = (height * stacks[x * N + category]) / sums[x];
        if (!part) continue;
        pen.fillStyle = colours.of[category];
        pen.fillRect(LEFT + x, bottom - part, 1.2, part);
        bottom -= part;
      }
    }
    return high - low;
  }
  // Rows: a heading for each rank, then its lanes.
  const rows = [];
  lanes.forEach((lane, at) => {
    if (!at || lanes[at - 1].rank !== lane.rank) rows.push({ rank: lane.rank });
    rows.push({ lane });
  });
  let y0 = 0;
  for (const row of rows) {
    row.y = y0;
    y0 += row.lane ? LANE : HEAD;
  }
  // The canvas is what can be seen of the rows: browsers have no canvas of 32,768 pixels and more,
  // which a thousand ranks would need.
  element("rows").style.height = `${Math.max(y0, LANE)}px`;
  function drawTimeline() {
    const [axis, axisWidth] = prepare(element("axis"), 20);
    times(axis, axisWidth, 15, 20, 11);
    const canvas = element("timeline"), view = element("scroll");
    const height = view.clientHeight, [pen, width] = prepare(canvas, height);
    const top = view.scrollTop, bottom = top + height;
    pen.translate(0, -top);
    pen.textBaseline = "middle";
    let visible = 0;
    const seen = rows.map((row, at) => [row, at]).filter(([row]) => row.y + LANE > top && row.y < bottom);
    for (const [row, at] of seen) {
      if (row.lane && at % 2) {
        pen.fillStyle = colours.stripe;
        pen.fillRect(LEFT, row.y, width - LEFT, LANE);
      }
    }
    times(pen, width, top, bottom);
    for (const [row] of seen) {
      pen.textAlign = "left";
      if (row.lane) {
        pen.fillStyle = colours.ink;
        pen.fillText(fitted(pen, row.lane.label, LEFT - 26), 12, row.y + LANE / 2);
        visible += drawLane(pen, row.lane, row.y, width);
      } else {
        pen.fillStyle = colours.card;
        pen.fillRect(0, row.y, width, HEAD);
        pen.fillStyle = colours.soft;
        pen.font = '600 12px system-ui, "DejaVu Sans", sans-serif';
        pen.fillText(fitted(pen, meta.ranks[row.rank].label, LEFT - 10), 0, row.y + HEAD / 2 + 2);
        pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
        pen.strokeStyle = colours.line;
        pen.beginPath();
        pen.moveTo(0, row.y + 0.5);
        pen.lineTo(width, row.y + 0.5);
        pen.stroke();
      }
    }
    return visible;
  }

  // ---- Bytes over time ------------------------------------------------------------
  function drawSeries(id, field) {
    const HEIGHT = 190, TOP = 8, FLOOR = HEIGHT - 22;
    const [pen, width] = prepare(element(id), HEIGHT);
    let most = 1;
    for (const rank of meta.ranks) for (const [at, value] of rank[field]) if (at >= 0 && value > most) most = value;
    const unit = 1024 ** Math.floor(Math.log2(most) / 10), by = Math.max(1, step(most / unit, 4)) * unit;
    most = Math.ceil(most / by) * by;
    const y = (value) => FLOOR - (value / most) * (FLOOR - TOP);
    times(pen, width, TOP, FLOOR + 4, HEIGHT - 4);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let value = 0; value <= most; value += by) {
      pen.strokeStyle = colours.line;
      pen.beginPath();
      pen.moveTo(LEFT, Math.round(y(value)) + 0.5);
      pen.lineTo(width, Math.round(y(value)) + 0.5);
      pen.stroke();
      pen.fillStyle = colours.soft;
      pen.fillText(size(value), LEFT - 8, y(value));
    }
    pen.textBaseline = "alphabetic";
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width - LEFT, HEIGHT);
    pen.clip();
    meta.ranks.forEach((rank, at) => {
      if (!rank[field].length) return;
      pen.strokeStyle = colours.ranks[at];
      pen.lineWidth = meta.ranks.length > 16 ? 1 : 1.6;
      pen.beginPath();
      let last = 0;
      for (const [at, value] of rank[field]) {
        const x = xOf(at, width);
        pen.lineTo(x, y(last));
        pen.lineTo(x, y(value));
        last = value;
      }
      pen.stroke();
      pen.lineWidth = 1;
    });
    pen.restore();
  }

  // ---- The slab map ---------------------------------------------------------------
  let chosen, blocks = [];
  function choose() {
    chosen = meta.slabs[element("slab").value];
    blocks = [];
    if (!chosen) return;
    for (const lane of lanes) {
      if (lane.rank !== chosen.rank) continue;
      for (let at = lane.first; at < lane.end; at++) {
        if (slab[at] === chosen.number && kind[at] === ALLOC) blocks.push(at);
      }
    }
  }
  // One that is not freed lives as long as its slab.
  const endOf = (at) => (took[at] ? time[at] * tick + took[at] : chosen.to);
  function drawSlab() {
    if (!chosen) return;
    const HEIGHT = 320, TOP = 6, FLOOR = HEIGHT - 22;
    const [pen, width] = prepare(element("slabs"), HEIGHT);
    const y = (at) => TOP + (at / chosen.bytes) * (FLOOR - TOP);
    times(pen, width, TOP, FLOOR + 4, HEIGHT - 4);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let quarter = 0; quarter <= 4; quarter++) {
      pen.fillStyle = colours.soft;
      pen.fillText(size((chosen.bytes * quarter) / 4), LEFT - 8, Math.min(Math.max(y((chosen.bytes * quarter) / 4), TOP + 5), FLOOR - 4));
    }
    pen.textBaseline = "alphabetic";
    const clip = (x) => Math.min(Math.max(x, LEFT), width);
    const left = clip(xOf(chosen.from, width)), right = clip(xOf(chosen.to, width));
    pen.fillStyle = colours.stripe;
    pen.fillRect(left, TOP, right - left, FLOOR - TOP);
    const visible = blocks.filter((at) => time[at] * tick < to && endOf(at) > from);
    if (visible.length <= 5000) {
      pen.globalAlpha = 0.85;
      pen.fillStyle = colours.of[0];
      for (const at of visible) {
        const x = clip(xOf(time[at] * tick, width)), end = clip(xOf(endOf(at), width));
        const top = y(offset[at]), height = Math.max(y(offset[at] + bytes[at]) - top, 1);
        pen.fillRect(x, top, Math.max(end - x, 1), height > 3 ? height - 0.5 : height);
      }
      pen.globalAlpha = 1;
    } else {
      // How full each cell is, from 0 to 1: what lies in part of a cell's time at once,
      // what goes on through whole cells where it begins and ends, summed along the time.
      const CELL = 3, columns = Math.ceil((width - LEFT) / CELL), lines = Math.floor((FLOOR - TOP) / CELL);
      const edges = new Float32Array((columns + 2) * lines), steps = new Float32Array((columns + 2) * lines);
      const perLine = chosen.bytes / lines;
      for (const at of visible) {
        const x0 = (clip(xOf(time[at] * tick, width)) - LEFT) / CELL, x1 = (clip(xOf(endOf(at), width)) - LEFT) / CELL;
        const c0 = Math.floor(x0), c1 = Math.floor(x1), start = offset[at], end = offset[at] + bytes[at];
        for (let line = Math.floor(start / perLine); line < lines && line * perLine < end; line++) {
          const part = (Math.min(end, (line + 1) * perLine) - Math.max(start, line * perLine)) / perLine;
          const row = line * (columns + 2);
          if (c0 === c1) {
            edges[row + c0] += part * (x1 - x0);
          } else {
            edges[row + c0] += part * (c0 + 1 - x0);
            edges[row + c1] += part * (x1 - c1);
            steps[row + c0 + 1] += part;
            steps[row + c1] -= part;
          }
        }
      }
      const small = document.createElement("canvas");
      [small.width, small.height] = [columns, lines];
      const brush = small.getContext("2d"), picture = brush.createImageData(columns, lines);
      brush.fillStyle = colours.of[0];
      brush.fillRect(0, 0, 1, 1);
      const [red, green, blue] = brush.getImageData(0, 0, 1, 1).data;
      for (let line = 0; line < lines; line++) {
        let through = 0;
        for (let x = 0; x < columns; x++) {
          through += steps[line * (columns + 2) + x];
          const full = through + edges[line * (columns + 2) + x];
          if (full > 0.01) picture.data.set([red, green, blue, 255 * Math.min(1, 0.1 + 0.85 * full)], 4 * (line * columns + x));
        }
      }
      brush.putImageData(picture, 0, 0);
      pen.imageSmoothingEnabled = false;
      pen.drawImage(small, LEFT, TOP, columns * CELL, lines * CELL);
    }
  }

  // ---- All of it ------------------------------------------------------------------
  function draw() {
    queued = false;
    if (element("scroll").clientWidth < LEFT + 50) return; // nothing can be seen: the next resize draws
    const before = performance.now();
    const visible = drawTimeline();
    if (!element("live-part").hidden) drawSeries("live", "live");
    drawSeries("pinned", "pinned");
    if (!element("slab-part").hidden) drawSlab();
    const told = document.documentElement.dataset;
    told.draws = Number(told.draws || 0) + 1;
    told.visible = visible;
    told.drawMs = (performance.now() - before).toFixed(1);
    told.from = from;
    told.to = to;
    told.events ??= time.length;
    told.firstDrawMs ??= (performance.now() - began).toFixed(0);
  }
  function redraw() {
    if (!queued) {
      queued = true;
      requestAnimationFrame(draw);
    }
  }
  function show(start, end) {
    const least = Math.min(whole, 100 * tick);
    const range = Math.min(Math.max(end - start, least), whole);
    const centre = (start + end) / 2;
    from = Math.min(Math.max(centre - range / 2, 0), whole - range);
    to = from + range;
    hide();
    redraw();
  }
  const zoom = (by, at) => show(at - (at - from) * by, at + (to - at) * by);
  const move = (by) => show(from + by * (to - from), to + by * (to - from));

  // ---- What the pointer is on -----------------------------------------------------
  const tip = element("tip");
  const hide = () => { tip.hidden = true; };
  function tell(head, text, event) {
    tip.textContent = "";
    const title = document.createElement("b");
    title.textContent = head;
    tip.append(title, text);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
  }
  function words(at) {
    const lines = [];
    if (meta.names[name[at]]) lines.push(meta.names[name[at]]);
    lines.push(`at ${duration(time[at] * tick, 9)}`);
    if (kind[at] === ALLOC) lines.push(took[at] ? `lived ${duration(took[at])}` : "not freed");
    else if (took[at]) lines.push(`took ${duration(took[at])}`);
    if (bytes[at]) lines.push(`${size(bytes[at])} (${number(bytes[at])} bytes)`);
    if (slab[at]) {
      const of = meta.slabs.find((of) => of.number === slab[at]);
      lines.push(`${of ? of.label : `slab ${slab[at]}`}, offset ${number(offset[at])}`);
    }
    return lines.join("\n");
  }
  function hover(event) {
    const canvas = element("timeline"), box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top + element("scroll").scrollTop, width = box.width;
    const row = rows.find((row) => row.lane && y >= row.y && y < row.y + LANE);
    if (!row || x < LEFT) return hide();
    const perPixel = (to - from) / (width - LEFT), at = from + (x - LEFT) * perPixel, lane = row.lane;
    const low = lowerBound(lane, at - 3 * perPixel), high = lowerBound(lane, at + 3 * perPixel + tick);
    const found = [];
    for (let index = lowerBound(lane, at - lane.longest - 3 * perPixel); lane.longest && index < low && found.length < 2; index++) {
      if (spans(index) && time[index] * tick + took[index] >= at && shown[categoryOf[kind[index]]]) found.push(index);
    }
    for (let index = low; index < high && found.length < 2; index++) if (shown[categoryOf[kind[index]]]) found.push(index);
    const where = `${meta.ranks[lane.rank].label}, ${lane.label}`;
    if (!found.length) return hide();
    if (found.length === 1) return tell(meta.kinds[kind[found[0]]], `${words(found[0])}\n${where}`, event);
    const sums = new Array(N).fill(0);
    visit(lane, low, high, perPixel, (category, count) => { sums[category] += count; });
    const lines = CATEGORIES.map((category, at) => [category[1], sums[at], shown[at]]).filter(([, sum, is]) => sum && is);
    const all = lines.reduce((sum, line) => sum + line[1], 0);
    tell(`${number(all)} events`, `${lines.map(([what, sum]) => `${number(sum)} ${what}`).join("\n")}\naround ${duration(at, 6)}\n${where}`, event);
  }
  function hoverSlab(event) {
    if (!chosen) return hide();
    const canvas = element("slabs"), box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left, at = from + ((x - LEFT) / (box.width - LEFT)) * (to - from);
    const place = ((event.clientY - box.top - 6) / (320 - 22 - 6)) * chosen.bytes;
    const found = blocks.find((block) =>
      time[block] * tick <= at && at < endOf(block) && offset[block] <= place && place < offset[block] + bytes[block]);
    if (x < LEFT || found === undefined) return hide();
    tell("block", words(found), event);
  }

  // ---- Hands ----------------------------------------------------------------------
  const canvas = element("timeline");
  let drag;
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    return from + (Math.max(event.clientX - box.left - LEFT, 0) / (box.width - LEFT)) * (to - from);
  };
  canvas.addEventListener("wheel", (event) => {
    if (event.shiftKey) return; // that scrolls
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 1000);
    else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), under(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("moving");
    drag = { x: event.clientX, from, to };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    const by = ((event.clientX - drag.x) / (canvas.clientWidth - LEFT)) * (drag.to - drag.from);
    show(drag.from - by, drag.to - by);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, () => { drag = undefined; canvas.classList.remove("moving"); });
  }
  canvas.addEventListener("pointerleave", hide);
  canvas.addEventListener("dblclick", () => show(0, whole));
  canvas.addEventListener("keydown", (event) => {
    const middle = (from + to) / 2;
    const does = {
      "+": () => zoom(0.6, middle), "=": () => zoom(0.6, middle), "-": () => zoom(1 / 0.6, middle),
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), 0: () => show(0, whole),
    }[event.key];
    if (does) { event.preventDefault(); does(); }
  });
  element("slabs").addEventListener("pointermove", hoverSlab);
  element("slabs").addEventListener("pointerleave", hide);
  element("scroll").addEventListener("scroll", redraw);
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { look(); keys(); redraw(); });

  // ---- The page's own parts ---------------------------------------------------------
  const present = new Array(N).fill(0);
  for (let at = 0; at < counts.length; at++) present[at % N] += counts[at];
  CATEGORIES.forEach(([colour, label], at) => {
    if (!present[at]) return;
    const button = document.createElement("button"), mark = document.createElement("i");
    mark.style.background = `var(--${colour})`;
    button.append(mark, label);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      shown[at] = !shown[at];
      button.setAttribute("aria-pressed", String(shown[at]));
      redraw();
    });
    element("legend").append(button);
  });
  function keys() {
    element("ranks").textContent = "";
    meta.ranks.slice(0, 64).forEach((rank, at) => {
      const key = document.createElement("span"), mark = document.createElement("i");
      mark.style.background = colours.ranks[at];
      key.append(mark, rank.label);
      element("ranks").append(key);
    });
  }
  meta.slabs.forEach((of, at) => {
    const option = document.createElement("option");
    option.value = at;
    option.textContent = `${meta.ranks[of.rank].label}: ${of.label}, ${size(of.bytes)}, ${number(of.blocks)} blocks`;
    element("slab").append(option);
  });
  if (meta.slabs.length) {
    element("slab").value = meta.slabs.reduce((best, of, at) => (of.blocks > meta.slabs[best].blocks ? at : best), 0);
  }
  element("slab").addEventListener("change", () => { choose(); redraw(); });
  element("slab-part").hidden = !meta.slabs.length;
  element("live-part").hidden = !meta.ranks.some((rank) => rank.live.length);
  look();
  keys();
  choose();
  redraw();
})();
