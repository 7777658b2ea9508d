// Draws the charts, and fills the chapters that depend on what the reader chooses. Text is only ever set as text.
"use strict";
(() => {
  document.documentElement.classList.add("scripted");
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // --- charts ---------------------------------------------------------------------------------------------------------

  const drawn = new Map();
  let style = getComputedStyle(document.documentElement);

  function resolved(value) {
    if (typeof value === "string") {
      const name = /^var\((--[a-z0-9]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map(resolved);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, resolved(one)]));
    }
    return value;
  }

  function axis(given) {
    const title = given.title ? { ...given.title, standoff: 10, font: { size: 13, color: "var(--muted)" } } : undefined;
    return {
      automargin: true, gridcolor: "var(--grid)", linecolor: "var(--edge)", zerolinecolor: "var(--edge)", zeroline: false,
      exponentformat: "none", separatethousands: true,
      ...given, ...(title ? { title } : {}),
    };
  }

  // On a narrow screen the legend has a line for each entry.
  const tall = (chart, width) => chart.height +
    (width < 520 && chart.layout.showlegend !== false ? 18 * Math.max(0, chart.data.length - 2) : 0);

  function layoutOf(chart, width) {
    const given = chart.layout;
    const layout = {
      font: { family: "system-ui, sans-serif", size: 13, color: "var(--ink)" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: true,
      margin: { l: 8, r: 12, t: 32, b: 8, autoexpand: true },
      hoverlabel: { align: "left", font: { size: 12 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "var(--muted)", activecolor: "var(--ink)" }, ...given, height: tall(chart, width), width,
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", ...(given.legend || {}) },
    };
    for (const key of Object.keys(layout)) if (/^[xy]axis\d*$/.test(key)) layout[key] = axis(layout[key]);
    return resolved(layout);
  }

  const config = {
    displaylogo: false, responsive: false, plotlyServerURL: "", showTips: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  function draw(chart) {
    const box = at("chart-" + chart.name);
    if (!box) return null;
    drawn.set(chart.name, chart);
    const width = box.clientWidth;
    box.style.minHeight = tall(chart, width) + "px";
    return Plotly.react(box, resolved(chart.data), layoutOf(chart, width), { ...config, displayModeBar: width < 520 ? false : "hover" });
  }

  function redraw() {
    style = getComputedStyle(document.documentElement);
    for (const chart of drawn.values()) draw(chart);
  }

  // --- cells ----------------------------------------------------------------------------------------------------------

  function cellsChart(cells, first, second) {
    const [across, up] = [cells.axes[first], cells.axes[second]];
    const flat = first === second;
    const rows = flat ? 1 : up.labels.length;
    const best = Array.from({ length: rows }, () => Array(across.labels.length).fill(null));
    const counts = Array.from({ length: rows }, () => Array(across.labels.length).fill(0));
    for (const square of cells.squares) {  // the best first
      const [x, y] = [square.cell[first], flat ? 0 : square.cell[second]];
      if (!(y in best) || x >= across.labels.length) continue;
      counts[y][x] += 1;
      if (best[y][x] === null) best[y][x] = square;
    }
    const timed = cells.squares.some((square) => square.speedup);
    const value = (square, n) => (square === null ? null : timed ? (square.speedup ? Math.log(square.speedup[0]) : null) : n);
    const words = (square, n, x, y) => {
      const where = `${escaped(across.name)}: ${escaped(across.labels[x])}` +
        (flat ? "" : `<br>${escaped(up.name)}: ${escaped(up.labels[y])}`);
      if (square === null) return `${where}<br>empty`;
      const speed = square.speedup
        ? `${square.speedup[0].toFixed(3)} (${square.speedup[1].toFixed(3)} to ${square.speedup[2].toFixed(3)})` : "not timed";
      return `${where}<br>${escaped(square.name)}<br>${speed}<br>${n} filled ${n === 1 ? "cell" : "cells"}`;
    };
    const z = best.map((row, y) => row.map((square, x) => value(square, counts[y][x])));
    const known = z.flat().filter((one) => one !== null);
    const ends = [Math.min(...known), Math.max(...known)];
    const trace = {
      type: "heatmap", z, x: across.labels.map((_, i) => i), y: best.map((_, i) => i), xgap: 3, ygap: 3, colorscale: "Viridis",
      text: best.map((row, y) => row.map((square, x) => words(square, counts[y][x], x, y))),
      hovertemplate: "%{text}<extra></extra>", hoverongaps: false,
      colorbar: { title: { text: timed ? "speed-up" : "filled cells", side: "right", font: { size: 13 } }, thickness: 12 },
    };
    const ground = {
      type: "heatmap", z: z.map((row) => row.map(() => 0)), x: trace.x, y: trace.y, xgap: 3, ygap: 3, showscale: false,
      colorscale: [[0, "var(--tint)"], [1, "var(--tint)"]], text: trace.text, hovertemplate: trace.hovertemplate,
    };
    if (known.length === 0) trace.showscale = false;
    if (known.length > 0 && timed) {
      if (ends[0] === ends[1]) ends[1] += 1e-6;
      const steps = ends[1] - ends[0] < 1e-5 ? [ends[0]] : [0, 0.25, 0.5, 0.75, 1].map((t) => ends[0] + t * (ends[1] - ends[0]));
      Object.assign(trace, { zmin: ends[0], zmax: ends[1] });
      Object.assign(trace.colorbar, { tickvals: steps, ticktext: steps.map((one) => Math.exp(one).toPrecision(2)) });
    }
    if (known.length > 0 && !timed) trace.colorbar.dtick = Math.max(1, Math.ceil((ends[1] - ends[0]) / 5));
    const labels = [];
    best.forEach((row, y) => row.forEach((square, x) => {
      if (square === null) return;
      const share = (z[y][x] - ends[0]) / (ends[1] - ends[0] || 1);
      const text = timed ? (square.speedup ? square.speedup[0].toPrecision(2) : "–") : String(counts[y][x]);
      labels.push({ x, y, text, showarrow: false, font: { size: 12, color: share > 0.6 ? "#10131a" : "#ffffff" } });
    }));
    const ticks = (one) => ({
      title: { text: escaped(one.name) }, tickvals: one.labels.map((_, i) => i), ticktext: one.labels.map(escaped),
      showgrid: false, zeroline: false, range: [-0.5, one.labels.length - 0.5],
    });
    const layout = { xaxis: ticks(across), yaxis: ticks(up), showlegend: false, annotations: labels };
    if (flat) layout.yaxis = { showticklabels: false, showgrid: false, zeroline: false, range: [-0.5, 0.5], title: { text: " " } };
    return { chart: { name: "cells", height: Math.max(260, 110 + 52 * rows), data: [ground, trace], layout }, best };
  }

  function cells() {
    const given = data.cells;
    if (!given) return;
    const choose = given.axes.map((one, i) => [i, one.name]);
    const [across, up] = given.first.map((chosen, place) => {
      const list = element("select", { "aria-label": place ? "upright axis" : "level axis" });
      for (const [i, name] of choose) list.append(element("option", { value: i }, name));
      list.value = chosen;
      at("cells-axes").append(element("label", {}, place ? "upright" : "across", list));
      return list;
    });
    let shown = null;
    const show = () => {
      shown = cellsChart(given, Number(across.value), Number(up.value));
      draw(shown.chart);
    };
    across.onchange = up.onchange = show;
    show();
    at("chart-cells").on("plotly_click", (event) => {
      const square = (shown.best[event.points[0].y] || [])[event.points[0].x];
      if (square && square.at) location.hash = square.at;
    });
    const caption = at("chart-cells").parentNode.querySelector("figcaption") ||
      at("chart-cells").parentNode.appendChild(element("figcaption"));
    if (given.left_out) caption.textContent = `${given.left_out} further cells are left out.`;
  }

  // --- side by side ---------------------------------------------------------------------------------------------------

  const sourceOf = (kernel) => at(kernel.id).querySelector("pre.source").textContent;

  // The longest common subsequence of lines, after what both begin and end with; null where that would take too long.
  function difference(old, now) {
    const [a, b] = [old.split("\n"), now.split("\n")];
    let head = 0;
    while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
    let tail = 0;
    while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
    const [n, m] = [a.length - head - tail, b.length - head - tail];
    if (n * m > 2e7) return null;
    const width = m + 1;
    const best = new Uint32Array((n + 1) * width);
    for (let i = n - 1; i >= 0; i -= 1) {
      for (let j = m - 1; j >= 0; j -= 1) {
        best[i * width + j] = a[head + i] === b[head + j]
          ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
      }
    }
    const lines = a.slice(0, head).map((line) => [" ", line]);
    let [i, j] = [0, 0];
    while (i < n || j < m) {
      if (i < n && j < m && a[head + i] === b[head + j]) { lines.push([" ", a[head + i]]); i += 1; j += 1; }
      else if (i < n && (j === m || best[(i + 1) * width + j] >= best[i * width + j + 1])) { lines.push(["-", a[head + i]]); i += 1; }
      else { lines.push(["+", b[head + j]]); j += 1; }
    }
    for (let k = a.length - tail; k < a.length; k += 1) lines.push([" ", a[k]]);
    return lines;
  }

  function showDiff(first, second) {
    const place = at("compare-diff");
    const lines = difference(sourceOf(first), sourceOf(second));
    if (lines === null) { place.replaceChildren(element("p", {}, "The sources differ too much to be compared line by line.")); return; }
    if (lines.every(([sign]) => sign === " ")) { place.replaceChildren(element("p", {}, "The sources are the same.")); return; }
    const near = new Set();
    lines.forEach(([sign], i) => { if (sign !== " ") for (let k = i - 3; k <= i + 3; k += 1) near.add(k); });
    const block = element("pre", { class: "diff", tabindex: "0" });
    let skipped = 0;
    const flush = () => {
      if (skipped) block.append(element("span", { class: "hunk" }, `… ${skipped} equal ${skipped === 1 ? "line" : "lines"}`));
      skipped = 0;
    };
    lines.forEach(([sign, line], i) => {
      if (!near.has(i)) { skipped += 1; return; }
      flush();
      block.append(element("span", { class: sign === "+" ? "add" : sign === "-" ? "del" : "same" }, sign + line));
    });
    flush();
    place.replaceChildren(element("p", { class: "note" }, "− only in the first, + only in the second."), block);
  }

  function showFacts(first, second) {
    const [one, two] = [new Map(first.facts), new Map(second.facts)];
    const names = [...new Set([...one.keys(), ...two.keys()])];
    const body = element("tbody");
    for (const name of names) {
      const [left, right] = [one.get(name) ?? "–", two.get(name) ?? "–"];
      const row = element("tr", left === right ? {} : { class: "differs" });
      row.append(element("th", { scope: "row" }, name), element("td", {}, left), element("td", {}, right));
      body.append(row);
    }
    const link = (kernel) => element("th", { scope: "col" }, element("a", { href: "#" + kernel.id }, kernel.title));
    const head = element("tr", {}, element("th", { scope: "col" }, "what"), link(first), link(second));
    const caption = element("caption", {}, "Two kernels side by side; what differs is shaded");
    const table = element("table", {}, caption, element("thead", {}, head), body);
    at("compare-table").replaceChildren(
      element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Two kernels side by side" }, table));
  }

  function showSamples(pair, number) {
    const boxes = [];
    const ratios = [];
    pair.forEach((kernel, place) => {
      const name = `${place ? "second" : "first"}: ${escaped(kernel.title)}`;
      const shades = place ? ["var(--c2)", "var(--c4)"] : ["var(--c1)", "var(--c5)"];
      const times = { kernel: [], baseline: [] };
      const points = [0, 1].map(() => ({ x: [], y: [], text: [] }));  // dropped, kept
      let block = 0;
      for (const session of kernel.sessions) {
        const found = session.cases[number];
        if (!found) continue;
        found.kept.forEach((kept, i) => {
          if (kept) { times.kernel.push(found.kernel[i]); times.baseline.push(found.baseline[i]); }
          block += 1;
          points[kept].x.push(block);
          points[kept].y.push(found.baseline[i] / found.kernel[i]);
          points[kept].text.push(`${name}<br>${escaped(session.purpose)}${kept ? "" : ", dropped"}<br>` +
            `kernel ${found.kernel[i].toPrecision(4)} µs, baseline ${found.baseline[i].toPrecision(4)} µs`);
        });
      }
      if (times.kernel.length) {
        for (const [i, what] of ["kernel", "baseline"].entries()) {
          boxes.push({
            type: "box", name: what === "kernel" ? name : `baseline beside the ${place ? "second" : "first"}`, y: times[what],
            x: times[what].map(() => (what === "kernel" ? `${place ? "second" : "first"}` : `baseline ${place ? "beside second" : "beside first"}`)),
            boxpoints: "all", jitter: 0.5, pointpos: 0, marker: { size: 4, color: shades[i] }, line: { color: shades[i], width: 1.5 },
            fillcolor: "rgba(0,0,0,0)", hovertemplate: "%{y:.4g} µs<extra></extra>",
          });
        }
      }
      for (const kept of [1, 0]) {
        if (points[kept].x.length === 0) continue;
        ratios.push({
          type: "scatter", mode: "markers", name: kept ? name : `${place ? "second" : "first"}, dropped`, ...points[kept],
          hovertemplate: "%{text}<br>ratio %{y:.3f}<extra></extra>",
          marker: { size: 7, color: shades[0], symbol: (place ? "square" : "circle") + (kept ? "" : "-open") },
        });
      }
    });
    const spread = boxes.flatMap((box) => box.y);
    const wide = spread.length > 0 && Math.max(...spread) / Math.min(...spread) > 6;
    at("compare-times").hidden = ratios.length === 0;
    if (ratios.length === 0) return;
    const boxAxis = { title: { text: "time of a call (µs)" + (wide ? ", logarithmic" : "") }, ...(wide ? { type: "log", dtick: "D2" } : { rangemode: "tozero" }) };
    draw({ name: "samples", height: 380, data: boxes, layout: { xaxis: { type: "category", title: { text: "kernel" } }, yaxis: boxAxis } });
    draw({
      name: "ratios", height: 340, data: ratios,
      layout: { xaxis: { title: { text: "block, in order of time" }, rangemode: "tozero" }, yaxis: { title: { text: "baseline time / kernel time" }, rangemode: "tozero" } },
    });
    const n = pair[0].left_out + pair[1].left_out;
    const caption = at("chart-samples").parentNode.querySelector("figcaption") || at("chart-samples").parentNode.appendChild(element("figcaption"));
    caption.textContent = n ? `${n.toLocaleString("en")} further samples are left out.` : "";
  }

  function compare() {
    if (data.pair.length < 2 || !at("compare-controls")) return;
    const byId = new Map(data.kernels.map((kernel) => [kernel.id, kernel]));
    const lists = ["first", "second"].map((word, place) => {
      const list = element("select", { id: "compare-" + word });
      for (const kernel of data.kernels) list.append(element("option", { value: kernel.id }, kernel.label));
      list.value = data.pair[place];
      at("compare-controls").append(element("label", {}, word, list));
      return list;
    });
    const sizes = element("select", { id: "compare-case" });
    const sizesLabel = element("label", {}, "case", sizes);
    at("compare-controls").append(sizesLabel);
    const pair = () => lists.map((list) => byId.get(list.value));
    const show = () => {
      const [first, second] = pair();
      const names = first.cases.length >= second.cases.length ? first.cases : second.cases;
      const chosen = Math.max(0, Math.min(Number(sizes.value) || 0, names.length - 1));
      sizes.replaceChildren(...names.map((name, i) => element("option", { value: i }, name)));
      if (names.length) sizes.value = chosen;
      sizesLabel.hidden = names.length < 2;
      showFacts(first, second);
      showSamples([first, second], chosen);
      showDiff(first, second);
    };
    for (const list of lists) list.onchange = show;
    sizes.onchange = () => showSamples(pair(), Number(sizes.value));
    for (const kernel of data.kernels) {
      const button = element("button", { type: "button", class: "compare-button", "aria-label": `compare with ${kernel.title}` }, "compare with …");
      button.onclick = (event) => {
        event.preventDefault();
        if (lists[1].value !== kernel.id) lists[0].value = lists[1].value;
        lists[1].value = kernel.id;
        show();
        location.hash = "compare";
      };
      at(kernel.id).querySelector("summary").append(button);
    }
    show();
  }

  // --- the page -------------------------------------------------------------------------------------------------------

  function unfold() {
    const target = location.hash.length > 1 ? at(decodeURIComponent(location.hash.slice(1))) : null;
    if (!target) return;
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    target.scrollIntoView();
  }

  if (innerWidth < 640) document.querySelector("details.setting").open = false;
  // One chart at a time, so that the page can be read and scrolled meanwhile; their places have their heights already.
  async function begin() {
    const tasks = [...data.charts.map((chart) => () => draw(chart)), cells, compare];
    for (const task of tasks) {
      task();
      await new Promise((next) => setTimeout(next, 0));
    }
    unfold();
    document.documentElement.dataset.ready = "yes";
  }
  begin();
  addEventListener("hashchange", unfold);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let waiting = 0;
  let width = document.documentElement.clientWidth;
  const resized = () => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 150);
  };
  addEventListener("resize", resized);
  const printing = (on) => () => {
    document.documentElement.classList.toggle("printing", on);
    redraw();
  };
  addEventListener("beforeprint", printing(true));
  addEventListener("afterprint", printing(false));
})();
