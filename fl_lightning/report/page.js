"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const names = data.names, hidden = new Set();
  const sheet = document.head.appendChild(document.createElement("style"));
  const tip = document.getElementById("tip");
  let focus = null;

  const restyle = () => {
    const rules = [...hidden].map((i) => `.e${i}:not(.chip){display:none!important}`);
    if (focus !== null && !hidden.has(focus)) {
      rules.push(`.e:not(.e${focus}):not(.chip):not(.card){opacity:.13!important}`);
      rules.push(`.line.ref:not(.e${focus}),.label.ref:not(.e${focus}){opacity:.55!important}`);
      rules.push(`.line.e${focus},.label.e${focus}{opacity:1!important}.line.e${focus}{stroke-width:3!important}`);
      rules.push(`.band.e${focus}{display:inline!important;opacity:.18!important}`);
      rules.push(`tr.r${focus} td{background:var(--grid)}`);
    }
    sheet.textContent = rules.join("");
  };
  const focusOn = (index) => { if (index !== focus) { focus = index; restyle(); } };

  for (const chip of document.querySelectorAll(".chip")) {
    const index = Number(chip.dataset.e);
    chip.addEventListener("click", (event) => {
      if (event.altKey || event.shiftKey) {
        const alone = hidden.size === names.length - 1 && !hidden.has(index);
        hidden.clear();
        if (!alone) names.forEach((_, i) => { if (i !== index) hidden.add(i); });
      } else if (!hidden.delete(index)) hidden.add(index);
      for (const other of document.querySelectorAll(".chip"))
        other.setAttribute("aria-pressed", String(!hidden.has(Number(other.dataset.e))));
      restyle();
    });
  }
  for (const item of document.querySelectorAll(".chip,.label,.card")) {
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
})();
