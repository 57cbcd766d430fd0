"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const names = data.names, hidden = new Set(data.hidden);
  const sheet = document.head.appendChild(document.createElement("style"));
  const tip = document.getElementById("tip");
  const chips = [...document.querySelectorAll("button.chip")];
  let focus = null;

  const restyle = () => {
    const rules = [...hidden].map((i) => `.e.e${i}{display:none!important}`);
    if (focus !== null && !hidden.has(focus)) {
      rules.push(`.e:not(.e${focus}):not(.card){opacity:.13!important}`);
      rules.push(`.line.ref:not(.e${focus}),.label.ref:not(.e${focus}){opacity:.55!important}`);
      rules.push(`.line.e${focus},.label.e${focus}{opacity:1!important}.line.e${focus}{stroke-width:3!important}`);
      rules.push(`.band.e${focus}{display:inline!important;opacity:.18!important}`);
      rules.push(`tr.r${focus} td{background:var(--grid)}`);
    }
    sheet.textContent = rules.join("");
  };
  const focusOn = (index) => { if (index !== focus) { focus = index; restyle(); } };

  // Names at the ends of the lines: moved apart, each as near to its line as their order allows.
  const apart = (wanted, gap, height) => {
    const blocks = [];
    for (const place of wanted) {
      blocks.push([place, 1]);
      while (blocks.length > 1) {
        const [[upper, n], [lower, m]] = blocks.slice(-2);
        if (lower - upper >= (gap * (n + m)) / 2) break;
        blocks.splice(-2, 2, [(upper * n + lower * m) / (n + m), n + m]);
      }
    }
    const placed = blocks.flatMap(([centre, size]) => Array.from({ length: size }, (_, k) => centre + gap * (k - (size - 1) / 2)));
    const low = placed.map((place, k) => Math.max(place, gap * k));
    return low.map((place, k) => Math.min(place, height - gap * (low.length - 1 - k)));
  };
  const relabel = () => {
    for (const plot of document.querySelectorAll(".labelled .plot")) {
      const leaders = [...plot.querySelectorAll(".leader")];
      const shown = [...plot.querySelectorAll(".label")]
        .map((label, k) => ({ label, leader: leaders[k], end: Number(leaders[k].dataset.end) }))
        .filter(({ label }) => !hidden.has(Number(label.dataset.e)))
        .sort((a, b) => a.end - b.end);
      apart(shown.map(({ end }) => end), 14.5, plot.clientHeight).forEach((place, k) => {
        shown[k].label.style.top = `${place.toFixed(1)}px`;
        shown[k].leader.setAttribute("d", `M1 ${shown[k].end}L13 ${place.toFixed(1)}`);
      });
    }
  };
  const show = () => {
    for (const chip of chips) chip.setAttribute("aria-pressed", String(!hidden.has(Number(chip.dataset.e))));
    document.body.classList.toggle("many", names.length - hidden.size > 8);
    restyle();
    relabel();
  };

  for (const chip of chips) {
    const index = Number(chip.dataset.e);
    chip.addEventListener("click", (event) => {
      if (event.altKey || event.shiftKey) {
        const alone = hidden.size === names.length - 1 && !hidden.has(index);
        hidden.clear();
        if (!alone) names.forEach((_, i) => { if (i !== index) hidden.add(i); });
      } else if (!hidden.delete(index)) hidden.add(index);
      show();
    });
  }
  for (const button of document.querySelectorAll("[data-show]"))
    button.addEventListener("click", () => {
      hidden.clear();
      if (button.dataset.show === "few") data.hidden.forEach((index) => hidden.add(index));
      show();
    });
  for (const item of [...chips, ...document.querySelectorAll(".label,.card")]) {
    item.addEventListener("pointerenter", () => focusOn(Number(item.dataset.e)));
    item.addEventListener("pointerleave", () => focusOn(null));
  }

  const share = (value, [low, high], log) =>
    log ? Math.log10(Math.min(Math.max(value, low), high) / low) / Math.log10(high / low) : (value - low) / (high - low);
  const shown = (value) => (value === null ? "–" : value > 1e90 ? "∞" : value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(1) : value.toFixed(3)).replace("-", "−");
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
    return Math.abs(xs[low] - x) < Math.abs(xs[high] - x) ? low : high;
  };
  const row = (s, k, near) => {
    const line = document.createElement("span");
    const name = document.createElement("em"), value = document.createElement("span");
    line.className = near ? "near" : "";
    name.textContent = names[s.i];
    name.style.color = `var(--c${data.colours[s.i]})`;
    value.textContent = shown(s.m[k]) + (s.l[k] !== s.h[k] ? ` (${shown(s.l[k])} to ${shown(s.h[k])})` : "");
    line.append(name, value);
    return line;
  };
  const place = (event) => {
    tip.style.display = "block";
    const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - tip.offsetWidth - 14 : event.clientX + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 6))}px`;
  };

  for (const plot of document.querySelectorAll(".plot[data-chart]")) {
    const chart = data.charts[plot.dataset.chart], cursor = plot.querySelector(".cursor");
    const leave = () => { tip.style.display = "none"; cursor.style.opacity = 0; focusOn(null); };
    const move = (event) => {
      const box = plot.getBoundingClientRect();
      const across = (event.clientX - box.left) / box.width, down = (event.clientY - box.top) / box.height;
      if (across < -0.01 || across > 1.01 || down < 0 || down > 1) { leave(); return; }
      const [left, right] = chart.x;
      const x = chart.xlog ? left * (right / left) ** across : left + across * (right - left);
      const here = chart.s
        .filter((s) => !hidden.has(s.i) && x <= s.x[s.x.length - 1] * 1.01)
        .map((s) => [s, nearest(s.x, x)]).filter(([s, k]) => s.m[k] !== null);
      if (!here.length) { leave(); return; }
      const gap = ([s, k]) => Math.abs(1 - down - share(s.m[k], chart.y, chart.ylog));
      const closest = here.reduce((a, b) => (gap(b) < gap(a) ? b : a));
      const ranked = [...here].sort((a, b) => b[0].m[b[1]] - a[0].m[a[1]]);
      const few = here.length > 9 ? ranked.filter((p) => p === closest || p[0].i === data.reference) : ranked;
      const title = document.createElement("b");
      title.textContent = `${chart.xl} ${Math.round(closest[0].x[closest[1]]).toLocaleString("en").replaceAll(",", " ")}`;
      tip.replaceChildren(title, ...few.map(([s, k]) => row(s, k, s === closest[0])));
      cursor.style.left = `${100 * share(closest[0].x[closest[1]], chart.x, chart.xlog)}%`;
      cursor.style.opacity = 0.5;
      focusOn(closest[0].i);
      place(event);
    };
    plot.addEventListener("pointermove", move);
    plot.addEventListener("pointerdown", move);
    plot.addEventListener("pointerleave", leave);
  }

  for (const cell of document.querySelectorAll("[data-tip]")) {
    const show = (event) => { tip.textContent = cell.dataset.tip; place(event); };
    cell.addEventListener("pointermove", show);
    cell.addEventListener("pointerdown", show);
    cell.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  }

  // Smoothing: the mean over a window of rounds around each point; what hovering shows stays as measured.
  const smoothed = (values, half) => values.map((_, k) => {
    const near = values.slice(Math.max(0, k - half), k + half + 1).filter((value) => value !== null);
    return near.length ? near.reduce((sum, value) => sum + value, 0) / near.length : null;
  });
  const path = (chart, xs, ys) => {
    const at = (value, ends, log) => Math.min(1, Math.max(0, share(value, ends, log)));
    return xs.map((x, k) => [x, ys[k]]).filter(([, y]) => y !== null)
      .map(([x, y]) => `${Math.round(1000 * at(x, chart.x, chart.xlog))} ${Math.round(1000 * (1 - at(y, chart.y, chart.ylog)))}`);
  };
  const smooth = (width) => {
    for (const plot of document.querySelectorAll(".plot[data-chart^=curve-]")) {
      const chart = data.charts[plot.dataset.chart];
      for (const s of chart.s) {
        const half = Math.round((width * s.x.length) / data.rounds / 2);
        const [mean, low, high] = [s.m, s.l, s.h].map((values) => path(chart, s.x, half ? smoothed(values, half) : values));
        const line = plot.querySelector(`path.line.e${s.i}`), band = plot.querySelector(`path.band.e${s.i}`);
        if (line) line.setAttribute("d", `M${mean.join("L")}`);
        if (band) band.setAttribute("d", `M${high.concat(low.reverse()).join("L")}z`);
      }
    }
  };
  const switches = [...document.querySelectorAll("[data-smooth]")];
  for (const button of switches)
    button.addEventListener("click", () => {
      for (const other of switches) other.setAttribute("aria-pressed", String(other === button));
      smooth(Number(button.dataset.smooth));
    });

  // Tables: a click on a heading sorts, a second one turns the order round; what has no value comes last.
  const key = (cell) => {
    const text = cell.textContent.trim().replaceAll("\u2212", "-").replace(/(?<=\d)[\s\u2009\u00a0](?=\d{3}\b)/g, "");
    const number = parseFloat(text.replace(/^[[+]+/, ""));
    return text === "" || text === "\u2013" ? null : Number.isNaN(number) ? text : number;
  };
  const order = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => {
      if (head.classList.contains("cell") || !head.textContent.trim()) return;
      const button = document.createElement("button");
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const ascending = head.getAttribute("aria-sort") === "descending" || (column === 0 && !head.hasAttribute("aria-sort"));
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
        const known = rows.filter(([value]) => value !== null).sort((a, b) => (ascending ? 1 : -1) * order(a[0], b[0]));
        body.append(...known.map(([, row]) => row), ...rows.filter(([value]) => value === null).map(([, row]) => row));
      });
    });
  }
  show();
})();
