// Live updates, charts and times in the reader's own zone. Every value here is on the page, as JSON or as CSV without it.
"use strict";
(() => {
  const body = document.body, root = document.documentElement;
  const key = body.dataset.server, base = body.dataset.base;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const units = ["B", "kB", "MB", "GB", "TB"];
  const bytes = (value) => {
    let unit = 0;
    while (Math.abs(value) >= 1024 && unit < 4) { value /= 1024; unit += 1; }
    return `${Number(value.toPrecision(3))} ${units[unit]}`;
  };
  // Three digits, without an exponent.
  const small = (value) =>
    value.toFixed(Math.min(100, 2 - Math.floor(Math.log10(Math.abs(value))))).replace(/\.?0+$/, "");
  const short = (value) => value == null ? "–" : value === 0 ? "0" : Math.abs(value) >= 1000
    ? Math.round(value).toLocaleString("en").replaceAll(",", " ")
    : Math.abs(value) < 0.001 ? small(value) : String(Number(value.toPrecision(3)));

  // Ages go on while nothing new comes: nothing is older than it says. They count from the server's clock, whose
  // difference from ours is known up to the shortest way that an age has taken.
  const lasting = (value) => {
    if (value < .9995) return `${Math.round(value * 1000)} ms`;
    if (value < 9.95) return `${value.toFixed(1)} s`;
    const whole = Math.round(value), minutes = Math.floor(whole / 60) % 60, hours = Math.floor(whole / 3600);
    if (whole < 100) return `${whole} s`;
    if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
    return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  };
  const aged = new WeakSet();
  let skew = Infinity;
  setInterval(() => {
    const now = performance.now() / 1000;
    for (const one of document.querySelectorAll("time[data-age]")) {
      const at = Date.parse(one.dateTime) / 1000;
      if (Number.isNaN(at)) continue;
      if (!aged.has(one)) { aged.add(one); skew = Math.min(skew, now - at - Number(one.dataset.age)); }
      one.textContent = lasting(Math.max(0, now - skew - at));
    }
  }, 1000);

  // Light and dark.
  const theme = document.getElementById("theme");
  const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this page only then */ }
    draw();
  });

  // The time range: as chosen, or two times of the reader's own.
  const select = document.getElementById("range");
  const ranged = () => body.dataset.range ? `range=${body.dataset.range}` : `begin=${body.dataset.begin}&end=${body.dataset.end}`;
  if (select) {
    select.addEventListener("change", () => { if (select.value) select.form.submit(); });
    const own = document.getElementById("own"), from = document.getElementById("from"), until = document.getElementById("until");
    const local = (seconds) => {
      const at = new Date(seconds * 1000 - new Date(seconds * 1000).getTimezoneOffset() * 60000);
      return at.toISOString().slice(0, 16);
    };
    from.value = local(Number(body.dataset.begin));
    until.value = local(Number(body.dataset.end));
    own.hidden = false;
    select.form.querySelector("[type=submit]").hidden = true;  // a choice is shown at once
    own.addEventListener("click", () => {
      const begin = new Date(from.value) / 1000, end = new Date(until.value) / 1000;
      if (begin < end) location.search = `?begin=${begin}&end=${end}`;
    });
    for (const link of document.querySelectorAll("[data-ranged] a")) link.href += `?${ranged()}`;
  }

  // Charts. On a narrow screen their axes take less of it.
  const charts = new Map();
  const narrow = () => matchMedia("(max-width: 640px)").matches;
  // What the legend has at a point: the one under the pointer; without a pointer the one where the chart rests.
  const legend = (words, rest, holds = false) => (plot, value, number, index) => {
    const column = plot.data[number];
    let i = index == null ? rest(plot) : index;
    while (holds && i > 0 && column[i] === undefined) i--;  // as of the last time at which it was known
    const found = column[i];
    return found == null ? "–" : words(found);
  };
  const show = (name, options, data) => {
    const place = document.querySelector(`[data-chart="${name}"]`);
    if (!place) return;
    const known = charts.get(name);
    const labels = JSON.stringify([options.series.map((one) => one.label), options.padding, narrow()]) + css("--ink");
    const width = Math.max(200, place.clientWidth);
    if (known && known.labels === labels) { known.plot.setData(data); known.plot.setSize({ width, height: 300 }); return; }
    if (known) known.plot.destroy();
    place.replaceChildren();
    const axis = { stroke: css("--soft"), grid: { stroke: css("--rule"), width: 1 }, ticks: { stroke: css("--rule") } };
    options.axes = options.axes.map((one) => ({ ...axis, ...one, grid: { ...axis.grid, ...one.grid }, ...(narrow() && one.label && { size: 56, labelSize: 20 }) }));
    charts.set(name, { labels, plot: new uPlot({ width, height: 300, ...options }, data, place) });
  };
  const empty = (name, words) => {
    const known = charts.get(name), place = document.querySelector(`[data-chart="${name}"]`);
    if (known) { known.plot.destroy(); charts.delete(name); }
    if (place) {
      const line = document.createElement("p");
      line.className = "empty";
      line.textContent = words;
      place.replaceChildren(line);
    }
  };
  const json = async (path) => {
    const answer = await fetch(path, { headers: { accept: "application/json" } });
    if (!answer.ok) throw new Error((await answer.text()).trim().split("\n")[0] || `${path}: ${answer.status}`);
    // Times are ISO 8601; what is drawn needs seconds.
    const seconds = (value) => Array.isArray(value) ? value.map(seconds) : typeof value === "string" ? Date.parse(value) / 1000 : value;
    return JSON.parse(await answer.text(), (name, value) => /^(at|begin|end)$/.test(name) ? seconds(value) : value);
  };
  const colours = () => ["--blue", "--orange", "--green", "--violet", "--gold", "--bad"].map(css);
  let curves = null, series = null;
  const chosen = new Set();

  // Sizes that are marked: they are read when the chart is drawn, as it is kept while the data changes.
  let marks = [];
  const MARK_ROW = 16;
  const marked = { hooks: { draw: [(plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.setLineDash([4, 5]); ctx.font = `${12 * devicePixelRatio}px sans-serif`;
    ctx.textAlign = "center"; ctx.textBaseline = "alphabetic";
    marks.forEach(([there, word, ink], number) => {
      const x = plot.valToPos(there, "x", true), right = bbox.left + bbox.width;
      if (!(x >= bbox.left && x <= right)) return;
      // Above the plot, where no line is; each word has a row of its own.
      const y = bbox.top - (6 + MARK_ROW * number) * devicePixelRatio, half = ctx.measureText(word).width / 2;
      ctx.strokeStyle = css(ink); ctx.fillStyle = css("--soft");
      ctx.beginPath(); ctx.moveTo(x, y + 4 * devicePixelRatio); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      ctx.fillText(word, Math.min(Math.max(x, bbox.left + half), right - half), y);
    });
    ctx.restore();
  }] } };
  const advised = (all) => all.filter((c) => c.advised_bytes != null && c.result).sort((a, b) => b.covered_seconds - a.covered_seconds)[0];

  const words = (seconds) => seconds >= 86400 ? "24 h" : seconds >= 3600 ? "1 h" : "15 min";
  const hourName = (curve) => new Date((curve.at - 3600) * 1000).toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit" });
  const atToday = (plot) => {
    const distances = plot.data[0].map((size) => Math.abs(Math.log(size / marks[0][0])));
    return distances.indexOf(Math.min(...distances));
  };
  const drawCurve = () => {
    const shown = [...curves.now.map((c) => [`last ${words(c.window_seconds)}`, c]),
      ...curves.hours.filter((c) => chosen.has(c.at)).map((c) => [hourName(c), c])]
      .filter(([, c]) => c.result && c.result.points.length);
    if (!shown.length) {
      const refused = curves.now.some((c) => c.result);
      empty("curve", curves.recording ? "No curve: no evidence is recorded now."
        : refused ? "No curve: the evidence allows no prediction." : "No curve yet. It needs a minute or two of evidence.");
      return;
    }
    const sizes = [...new Set(shown.flatMap(([, c]) => c.result.points.map((p) => p.shared_buffers_bytes)))].sort((a, b) => a - b);
    const data = [sizes], lines = [{ label: "shared_buffers", value: legend(bytes, atToday) }], bands = [], colour = colours();
    shown.forEach(([name, curve], number) => {
      const at = new Map(curve.result.points.map((p) => [p.shared_buffers_bytes, p]));
      const column = (field) => sizes.map((size) => at.has(size) ? 100 * at.get(size)[field] : null);
      const ink = colour[number % colour.length];
      const value = legend((v) => `${v.toFixed(2)}%`, atToday);
      data.push(column("miss_ratio"));
      lines.push({ label: name, stroke: ink, width: 2, spanGaps: true, points: { show: true, size: 6 }, value });
      if (number === 0) {
        data.push(column("high"), column("low"));
        lines.push({ label: "high (90%)", stroke: ink, width: .5, spanGaps: true, points: { show: false }, value },
          { label: "low (90%)", stroke: ink, width: .5, spanGaps: true, points: { show: false }, value });
        bands.push({ series: [2, 3], fill: `${ink}2b` });
      }
    });
    const now = shown[0][1].result.observed.shared_buffers_bytes, best = advised(curves.now);
    marks = best == null ? [[now, "today", "--faint"]] : best.advised_bytes === now ? [[now, "today, leave it", "--green"]]
      : [[now, "today", "--faint"], [best.advised_bytes, "advised", "--blue"]];
    show("curve", {
      padding: [8 + MARK_ROW * marks.length, null, null, null],
      scales: { x: { time: false, distr: 3, log: 2 }, y: { range: (_, low, high) => [0, Math.max(high * 1.08, .1)] } },
      axes: [{ values: (_, ticks) => ticks.map((v) => v == null ? "" : bytes(v)), space: 60 },
        { label: "misses, % of accesses", values: (_, ticks) => ticks.map((v) => `${v}`), size: 56 }],
      series: lines, bands, plugins: [marked],
    }, data);
  };
  const drawHours = () => {
    const box = document.getElementById("hours");
    if (!box || !curves.hours.length) return;
    const known = new Set([...box.querySelectorAll("input")].map((one) => Number(one.value)));
    box.hidden = false;
    for (const curve of curves.hours.slice(-48)) {
      if (known.has(curve.at)) continue;
      const label = document.createElement("label"), input = document.createElement("input");
      input.type = "checkbox"; input.value = curve.at;
      input.addEventListener("change", () => { input.checked ? chosen.add(curve.at) : chosen.delete(curve.at); drawCurve(); });
      const said = curve.advised_bytes == null || !curve.result ? "" : curve.advised_bytes === curve.result.observed.shared_buffers_bytes ? ": leave it" : `: ${bytes(curve.advised_bytes)}`;
      label.append(input, ` ${hourName(curve)}${said}`);
      box.append(label);
    }
  };

  // Where intervals are missing the line is broken: a point without a value is put there.
  const withBreaks = (at, columns, least) => {
    const x = [], out = columns.map(() => []), step = Math.max(least, 10);
    const steps = at.slice(1).map((value, i) => value - at[i]).sort((a, b) => a - b);
    const usual = Math.max(step, steps.length ? steps[Math.floor(steps.length / 2)] : step);
    at.forEach((value, i) => {
      if (i && value - at[i - 1] > 2.5 * usual) { x.push(at[i - 1] + usual); out.forEach((column) => column.push(null)); }
      x.push(value);
      out.forEach((column, number) => column.push(columns[number][i]));
    });
    return [x, ...out];
  };
  const perSecond = (name, of = series) => of.columns[name].map((value, i) => {
    const covered = of.columns.covered_seconds[i];
    return value == null || !covered ? null : value / covered;
  });
  const clock = (_, ticks, __, ___, step) => ticks.map((at, i) => {
    const time = new Date(at * 1000), day = time.toLocaleDateString([], { day: "numeric", month: "short" });
    if (step >= 86400) return day;
    const hour = time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false, ...(step < 60 && { second: "2-digit" }) });
    return i ? hour : `${hour}\n${day}`;
  });
  // The last point of today: what is behind it goes on.
  const newest = (plot) => plot.data[0].findLastIndex((at) => at <= (series.at.at(-1) ?? series.end));
  // The same time a day and a week before, behind the first line of a chart, where the history has it.
  const BEFORE = [[86400, "a day before", [8, 4]], [7 * 86400, "a week before", [2, 4]]];
  let past = [];
  const timed = (name, lines, axes, scales, data, earlier) => {
    const behind = past.flatMap(([shift, word, dash, had]) => {
      const [at, column] = earlier(had) || [[], []];
      if (!column.some((v) => v != null)) return [];
      const line = { ...lines[0], label: `${lines[0].label}, ${word}`, stroke: css("--faint"), width: 1.5, dash, points: { show: false } };
      return [[line, withBreaks(at.map((one) => one + shift), [column], 60)]];
    });
    const first = { label: "time", value: legend((at) => new Date(at * 1000).toLocaleString([], { hour12: false }), newest) };
    show(name, {
      padding: [8 + MARK_ROW * eventRows(), null, null, null], plugins: [eventMarks],
      scales: { x: { time: true, range: () => [series.begin, series.end] }, ...scales },
      legend: { markers: { dash: (plot, i) => ({ 8: "dashed", 2: "dotted" })[plot.series[i].dash?.[0]] || "solid" } },
      series: [first, ...behind.map(([line]) => line), ...lines], axes: [{ space: 70, values: clock }, ...axes],
    }, behind.length ? uPlot.join([...behind.map(([, table]) => table), data]) : data);
  };
  // What happened, as marks on the axis of time: restarts and other gaps, changed settings, checkpoints.
  const happened = () => {
    if (!series) return [];
    const found = series.gaps.map((gap) => [gap.end, "was away", "--bad"]);
    const sizes = series.columns.shared_buffers_bytes, points = series.columns.checkpoints || [];
    let last = null;
    series.at.forEach((at, i) => {
      if (points[i] > 0) found.push([at, "", "--faint"]);
      if (sizes[i] == null) return;
      // A coarser step averages a size; only whole megabytes are a setting.
      if (last != null && sizes[i] !== last && sizes[i] % 131072 === 0) found.push([at, `shared_buffers ${bytes(sizes[i])}`, "--blue"]);
      last = sizes[i];
    });
    return found.sort((a, b) => a[0] - b[0]);
  };
  const named = () => happened().filter(([at, word]) => word && at >= series.begin && at <= series.end);
  const eventRows = () => Math.min(3, named().length);
  const eventMarks = { hooks: { draw: [(plot) => {
    const { ctx, bbox } = plot, right = bbox.left + bbox.width, bottom = bbox.top + bbox.height;
    ctx.save();
    ctx.font = `${12 * devicePixelRatio}px sans-serif`; ctx.textAlign = "center"; ctx.textBaseline = "alphabetic";
    let checkpoints = 0;
    const ends = Array(eventRows()).fill(-Infinity);  // where the last word of each row ends
    for (const [at, word, ink] of happened()) {
      const x = plot.valToPos(at, "x", true);
      if (!(x >= bbox.left && x <= right)) continue;
      ctx.strokeStyle = css(ink); ctx.fillStyle = css("--soft");
      ctx.setLineDash(word ? [4, 5] : []);
      // A checkpoint is a tick at the foot: many of them must not hide the lines.
      if (!word) checkpoints++;
      ctx.beginPath(); ctx.moveTo(x, word ? bbox.top : bottom - 8 * devicePixelRatio); ctx.lineTo(x, bottom); ctx.stroke();
      if (!word) continue;
      const half = ctx.measureText(word).width / 2, middle = Math.min(Math.max(x, bbox.left + half), right - half);
      const row = ends.findIndex((end) => end + 6 * devicePixelRatio < middle - half);
      if (row < 0) continue;  // the line is there, and its word has no room
      ends[row] = middle + half;
      ctx.fillText(word, middle, bbox.top - (5 + MARK_ROW * row) * devicePixelRatio);
    }
    ctx.restore();
    plot.root.dataset.checkpoints = checkpoints;
    plot.root.dataset.marks = named().map(([, word]) => word).join("; ");
  }] } };
  const zero = { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] };
  const drawSeries = () => {
    if (!series.at.length) {
      empty("reads", "The history has nothing of this time yet."); empty("sweep", "The history has nothing of this time yet."); return;
    }
    const colour = colours(), value = legend((v) => `${short(v)}/s`, newest, true);
    const hits = perSecond("hits"), reads = perSecond("reads");
    // What served the reads is known of other seconds than those of a sample; undefined is no break of a line.
    const split = (name) => series.columns[name].map((value, i) => {
      const seconds = series.columns.split_seconds[i];
      return value == null || !seconds ? undefined : value / seconds;
    });
    const cache = split("page_cache_reads"), disk = split("disk_reads"), known = cache.some((v) => v > 0) || disk.some((v) => v != null);
    const unsplit = known ? split("unsplit_reads").map((v, i) => v ?? (series.columns.split_seconds[i] == null && series.columns.disk_read_bytes[i] == null ? reads[i] : undefined)) : reads;
    const right = { scale: "hits", side: 1, grid: { show: false }, values: (_, t) => t.map(short), size: 70, label: "from the pool, blocks/s" };
    const left = { values: (_, t) => t.map(short), size: 70, label: "into the pool, blocks/s" };
    const lines = [], columns = [];
    if (known) { lines.push({ label: "page cache", stroke: colour[2], width: 2, value }, { label: "disk", stroke: colour[1], width: 2, value }); columns.push(cache, disk); }
    if (!known || unsplit.some((v) => v > 0)) { lines.push({ label: "page cache or disk", stroke: colour[known ? 3 : 1], width: 2, value }); columns.push(unsplit); }
    if (lines.length > 1) { lines.unshift({ label: "into the pool", stroke: css("--ink"), width: 1, value }); columns.unshift(reads); }
    timed("reads", [...lines, { label: "pool (right axis)", stroke: colour[0], width: 1.5, scale: "hits", value }], [left, right], { y: zero, hits: zero },
      withBreaks(series.at, [...columns, hits], series.step_seconds), (had) => [had.series.at, perSecond("reads", had.series)]);
    const passes = (of) => of.at.map((_, i) => {
      const moved = of.columns.hand_buffers[i], covered = of.columns.covered_seconds[i], pool = of.columns.shared_buffers_bytes[i];
      return moved > 0 && covered && pool ? pool / 8192 * covered / moved : null;
    });
    const seconds = legend((v) => `${short(v)} s`, newest, true);
    const parts = [
      [{ label: "evictions", stroke: colour[1], width: 2, value }, (of) => perSecond("evictions", of)],
      [{ label: "clock pass (right axis)", stroke: colour[3], width: 2, scale: "pass", value: seconds }, passes],
    ].filter(([, made]) => made(series).some((v) => v != null));
    if (!parts.length) { empty("sweep", "Neither evictions nor the clock hand were seen in this time."); return; }
    const axes = [{ values: (_, t) => t.map(short), size: 70, label: "evictions/s" }];
    if (parts.some(([line]) => line.scale)) axes.push({ scale: "pass", side: 1, grid: { show: false }, values: (_, t) => t.map(short), size: 70, label: "one clock pass, s" });
    timed("sweep", parts.map(([line]) => line), axes, { y: zero, pass: zero },
      withBreaks(series.at, parts.map(([, made]) => made(series)), series.step_seconds), (had) => [had.series.at, parts[0][1](had.series)]);
  };
  let databases = null;
  const MOST_DATABASES = 6;
  const drawDatabases = () => {
    if (!databases || !series) return;
    const nothing = databases.trouble || "Nothing is known of this time yet: the first interval takes a minute.";
    if (!databases.databases.length) { for (const name of ["dbhits", "dbreads"]) empty(name, nothing); return; }
    const colour = colours(), shown = databases.databases.filter((one) => one.name).slice(0, MOST_DATABASES);
    const line = (one, number, value) => ({ label: one.name, stroke: colour[number % colour.length], width: 2, value });
    const ratioOf = (one) => one.hits.map((hits, i) => hits == null || !(hits + one.reads[i]) ? null : 100 * hits / (hits + one.reads[i]));
    const rateOf = (one, of) => one.reads.map((reads, i) => reads == null || !of.seconds[i] ? null : reads / of.seconds[i]);
    const left = (label) => ({ values: (_, t) => t.map(short), size: 70, label });
    const ratio = legend((v) => `${v.toFixed(2)}%`, newest, true), rate = legend((v) => `${short(v)}/s`, newest, true);
    const least = { range: (_, low) => [Math.max(0, Math.min(low, 99) - 1), 100.5] };
    for (const [name, words, label, scale, made] of [["dbhits", "hit ratio, %", ratio, least, ratioOf], ["dbreads", "into the pool, blocks/s", rate, zero, rateOf]]) {
      timed(name, shown.map((one, i) => line(one, i, label)), [left(words)], { y: scale }, [databases.at, ...shown.map((one) => made(one, databases))], (had) => {
        const one = had.databases.databases.find((each) => each.name === shown[0].name);
        return one && [had.databases.at, made(one, had.databases)];
      });
    }
  };
  let shares = null;
  const MOST_SHARES = 6;
  // Stacked, the largest on top: each area hides the lower end of the one before it.
  const drawShares = () => {
    if (!shares || !series) return;
    if (!shares.relations.length) { empty("shares", shares.trouble || "Nothing is known of this time yet: the first interval takes a minute."); return; }
    const named = shares.relations.filter((one) => one.relation), home = named[0]?.database;
    const parts = named.slice(0, MOST_SHARES).map((one) => [one.database && one.database !== home ? `${one.database}: ${one.relation}` : one.relation, [one]]);
    const others = shares.relations.filter((one) => !one.relation || named.indexOf(one) >= MOST_SHARES);
    if (others.length) parts.push(["all others", others]);
    const known = shares.at.map((_, i) => shares.relations.some((one) => one.pool_bytes[i] != null));
    const columns = [];
    let above = shares.at.map(() => 0);
    for (const [, ones] of parts.toReversed()) {
      above = above.map((sum, i) => sum + ones.reduce((held, one) => held + (one.pool_bytes[i] || 0), 0));
      columns.unshift(above.map((sum, i) => known[i] ? sum : null));
    }
    const held = (plot, _, number, index) => {
      let i = index == null ? newest(plot) : index;
      const { data } = plot, pool = parts.length + 1, column = data[number];
      while (i > 0 && column[i] === undefined) i--;
      if (column[i] == null) return "–";
      const size = number === pool ? column[i] : column[i] - (number + 1 < pool ? data[number + 1][i] : 0);
      while (i > 0 && data[pool][i] == null) i--;
      return number === pool || !data[pool][i] ? bytes(size) : `${bytes(size)}, ${(100 * size / data[pool][i]).toFixed(1)}%`;
    };
    const lines = parts.map(([label], n) => ({ label, stroke: css(n === parts.length - 1 && others.length ? "--p6" : `--p${n}`), fill: css(n === parts.length - 1 && others.length ? "--p6" : `--p${n}`), width: 0, points: { show: false }, value: held }));
    lines.push({ label: "shared_buffers", stroke: css("--ink"), width: 1, dash: [8, 4], points: { show: false }, value: held });
    const table = withBreaks(shares.at, columns, 60);
    timed("shares", lines, [{ values: (_, ticks) => ticks.map(bytes), size: 70, incrs: Array.from({ length: 48 }, (_, n) => 2 ** n) }], { y: zero },
      uPlot.join([table, [series.at, series.columns.shared_buffers_bytes]]), () => null);
  };
  const draw = () => { if (curves) drawCurve(); if (series) drawSeries(); drawDatabases(); drawShares(); };
  const later = (work, pause) => {
    let waiting = null, last = 0;
    return () => {
      if (waiting) return;
      waiting = setTimeout(() => { waiting = null; last = Date.now(); work().catch(() => {}); }, Math.max(0, last + pause - Date.now()));
    };
  };
  const loadCurves = later(async () => {
    curves = await json(`${base}/servers/${key}/curves.json?${ranged()}`);
    drawHours(); drawCurve();
  }, 1000);
  const pause = { "15m": 2000, "1h": 5000, "6h": 15000, "24h": 30000 }[body.dataset.range] || 120000;
  const loadSeries = later(async () => {
    try { series = await json(`${base}/servers/${key}/series.json?${ranged()}`); } catch (error) {
      if (!series && !(error instanceof TypeError)) for (const name of ["reads", "sweep"]) empty(name, error.message);
      throw error;
    }
    drawSeries(); drawDatabases(); drawShares(); loadPast();
  }, pause);
  const loadPast = later(async () => {
    const { begin, end } = series, found = [];
    for (const [shift, word, dash] of BEFORE) {
      if (end - begin > shift + 60) continue;
      // A little more than is shown: the range moves on meanwhile.
      const then = `begin=${begin - shift}&end=${end - shift + 300}`;
      const [had, counted] = await Promise.all(["series", "databases"].map((what) => json(`${base}/servers/${key}/${what}.json?${then}`)));
      found.push([shift, word, dash, { series: had, databases: counted }]);
    }
    past = found;
    drawSeries(); drawDatabases();
  }, 120000);
  const loadMinutes = later(async () => {
    [databases, shares] = await Promise.all(["databases", "shares"].map((what) => json(`${base}/servers/${key}/${what}.json?${ranged()}`)));
    drawDatabases(); drawShares();
  }, 5000);
  if (key) {
    loadCurves(); loadSeries(); loadMinutes();
    // The axis goes on where no look comes to an end.
    if (body.dataset.range) setInterval(loadSeries, 30000);
    let sizing = null;
    new ResizeObserver(() => { clearTimeout(sizing); sizing = setTimeout(() => {
      for (const [name, { plot }] of charts) plot.setSize({ width: Math.max(200, document.querySelector(`[data-chart="${name}"]`).clientWidth), height: 300 });
    }, 100); }).observe(document.getElementById("main"));
  }

  // Events.
  const away = document.getElementById("away");
  if (key || document.getElementById("overview")) {
    const events = new EventSource(`${base}/events` + (key ? `?server=${encodeURIComponent(key)}` : ""));
    const pass = (name) => {
      body.dispatchEvent(new CustomEvent(`pgsweep:${name}`));
      if (name === "sample") passRelations();
    };
    // The last sample must not be left out: none may follow it while the server is away.
    const passRelations = later(async () => pass("relations"), 5000);
    let lost = false;
    body.addEventListener("htmx:beforeRequest", (event) => { if (lost) event.preventDefault(); });
    for (const name of ["sample", "curve", "memory", "recording", "consumers"]) events.addEventListener(name, () => {
      pass(name);
      if (key && name === "sample") loadSeries();
      if (key && name === "consumers") loadMinutes();
      if (key && (name === "curve" || name === "recording")) loadCurves();
    });
    events.addEventListener("open", () => {
      away.hidden = true;
      if (lost) { lost = false; for (const name of ["sample", "curve", "memory", "consumers"]) pass(name); if (key) { loadCurves(); loadSeries(); } }
    });
    events.addEventListener("error", () => { lost = true; away.hidden = false; });
    addEventListener("pagehide", () => events.close());
  }

  // The order of relations: a click on a head of the table, which is made anew with each sample.
  const relations = document.getElementById("relations");
  if (relations) relations.addEventListener("click", (event) => {
    const button = event.target.closest("[data-sort]");
    if (!button) return;
    document.getElementById("sort").value = button.dataset.sort;
    document.getElementById("reverse").value = button.dataset.reverse;
    relations.dispatchEvent(new CustomEvent("pgsweep:sort"));
  });

  // Keys: / goes to the filter.
  addEventListener("keydown", (event) => {
    const filter = document.getElementById("filter");
    if (event.key === "/" && filter && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) { event.preventDefault(); filter.focus(); }
  });
})();
