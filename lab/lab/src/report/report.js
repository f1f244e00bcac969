// Reads out, zooms, redraws and saves the charts of the page, which is complete without it.
{
  // As in svg/mod.rs.
  const LEFT = 50, TOP = 28, RIGHT = 18, BOTTOM = 46, CHARACTER = 6.8, LEGEND_ROW = 20;
  const SLACK = 1e-9;

  const px = (value) => String(Math.round(value * 10) / 10);

  // Numbers with three significant digits, and marks of axes: as in number.rs and ticks.rs.
  const engineering = (value) => {
    const exponent = Number(Math.abs(value).toExponential(2).split("e")[1]);
    const power = Math.floor(exponent / 3);
    return [(value / 1000 ** power).toFixed(2 - (exponent - 3 * power)), power];
  };
  const short = (value) => {
    if (!Number.isFinite(value)) return "-";
    if (value === 0) return "0";
    const [text, power] = engineering(value);
    if (power >= 0 && power < 4) return text + ["", "k", "M", "G"][power];
    return Math.abs(value) >= 0.001 && power < 0 ? String(Number(value.toPrecision(3))) : value.toExponential(2);
  };
  const withUnit = (value, units) => {
    if (value === 0) return `0 ${units[0]}`;
    const [text, power] = engineering(value);
    return power < 0 ? `${short(value)} ${units[0]}` : `${text} ${units[power] ?? `e${3 * power} ${units[0]}`}`;
  };
  const UNITS = {
    bytes: (value) => (Math.abs(value) < 999.5 ? `${Math.round(value)} B` : withUnit(value, ["B", "KB", "MB", "GB", "TB", "PB"])),
    micros: (value) => withUnit(value * 1000, ["ns", "\u00b5s", "ms", "s"]),
    fraction: (value) => `${plain(Number((value * 100).toPrecision(4)))} %`,
    number: short,
  };
  const plain = (value) => {
    const size = Math.abs(value);
    const tidy = (part) => String(Number(part.toFixed(6)));
    if (value === 0) return "0";
    if (size >= 1e12 || !(size >= 1e-4)) return value.toExponential();
    const [scale, suffix] = [[1e9, "G"], [1e6, "M"], [1e4, "k"]].find(([from]) => size >= from) ?? [1, ""];
    return tidy(value / (suffix === "k" ? 1e3 : scale)) + suffix;
  };
  const nice = (span, most) => {
    const raw = span / Math.max(most, 1);
    const magnitude = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].find((factor) => raw <= factor * magnitude * (1 + SLACK)) * magnitude;
  };
  const linear = (low, high, most) => {
    const step = nice(high - low, most);
    const marks = [];
    if (!(step > Math.max(Math.abs(low), Math.abs(high)) * 1e-12)) return marks;
    for (let index = Math.ceil(low / step - SLACK); index <= Math.floor(high / step + SLACK); index++) {
      marks.push(step < 1 ? index / Math.round(1 / step) : index * step);
    }
    return marks;
  };
  const decades = (low, high, digits) => {
    const marks = [];
    for (let exponent = Math.floor(Math.log10(low)) - 1; exponent <= Math.ceil(Math.log10(high)); exponent++) {
      marks.push(...digits.map((digit) => digit * 10 ** exponent));
    }
    return marks.filter((mark) => mark >= low * (1 - SLACK) && mark <= high * (1 + SLACK));
  };
  const logarithmic = (low, high, most) => {
    for (const digits of [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]]) {
      const marks = decades(low, high, digits);
      if (marks.length >= 2 && marks.length <= most + 1) return marks;
    }
    const whole = decades(low, high, [1]);
    if (whole.length < 2) return linear(low, high, most);
    const stride = Math.ceil(whole.length / most);
    return whole.filter((_, index) => index % stride === 0);
  };
  const widen = (low, high, log) => {
    if (log) {
      const below = decades(low / 10, low, [1, 2, 5]).pop() ?? low;
      const above = decades(high, high * 10, [1, 2, 5])[0] ?? high;
      return above > below ? [below, above] : [below, below * 2];
    }
    if (low >= high) return low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
    const step = nice(high - low, 5);
    return [Math.floor(low / step + SLACK) * step, Math.ceil(high / step - SLACK) * step];
  };
  const labels = (marks, quantity, log) => {
    if (quantity === "number") return [marks.map(plain), ""];
    if (quantity === "fraction") return [marks.map((mark) => `${plain(Number((mark * 100).toPrecision(6)))} %`), ""];
    if (log) return [marks.map((mark) => UNITS[quantity](mark).replace(/\.?0+(?= )/, (zeros) => (zeros.includes(".") ? "" : zeros))), ""];
    const units = quantity === "bytes" ? [[1e9, "GB"], [1e6, "MB"], [1e3, "KB"], [1, "B"]] : [[1e6, "s"], [1e3, "ms"], [1, "\u00b5s"], [1e-3, "ns"]];
    const largest = Math.max(0, ...marks.map(Math.abs));
    const [scale, unit] = units.find(([from]) => largest >= from) ?? units[units.length - 1];
    return [marks.map((mark) => plain(mark / scale)), unit];
  };

  const save = (name, type, text) => {
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  let charts = 0;

  const enhance = (figure) => {
    const chart = figure.querySelector("svg.chart");
    const { x: across, y: up, lines } = JSON.parse(figure.querySelector("script").textContent);
    const [, , width, height] = chart.getAttribute("viewBox").split(" ").map(Number);
    const right = width - RIGHT, bottom = height - BOTTOM;
    const title = figure.querySelector("figcaption").textContent;
    const section = figure.closest("section") ?? figure;
    const clip = `clip${charts++}`;

    // The notes at marks become the read-out, in place of the browser's own.
    for (const line of lines) {
      const group = chart.querySelector(`.line.${line.look}`);
      const marks = [...group.querySelectorAll(".mark")];
      const notes = marks.map((mark) => mark.querySelector("title")?.textContent);
      line.outline = marks[0]?.getAttribute("d").replace(/^M[-\d.]+ [-\d.]+/, "");
      line.parts = line.parts.map((part) => {
        const points = [];
        for (let at = 0; at < part.length; at += 2) points.push({ x: part[at], y: part[at + 1], note: notes.shift() });
        return points;
      });
      line.points = line.parts.flat();
      group.querySelectorAll(".value").forEach((value) => value.remove());
      group.querySelectorAll("title").forEach((note) => note.remove());
    }
    const drawn = [...chart.childNodes];
    const isShown = (line) => section.querySelector(`input.${line.look}`)?.checked ?? true;
    const view = { x: null, y: null, log: up.log };
    let cursor = null;

    const place = (log) => (log ? Math.log10 : (value) => value);
    const unplace = (log) => (log ? (value) => 10 ** value : (value) => value);
    const map = ([low, high], log, from, to) => {
      const at = place(log);
      return (value) => (log && !(value > 0) ? NaN : from + ((at(value) - at(low)) / (at(high) - at(low))) * (to - from));
    };
    const inverse = ([low, high], log, from, to) => {
      const at = place(log);
      return (pixel) => unplace(log)(at(low) + ((pixel - from) / (to - from)) * (at(high) - at(low)));
    };
    const xEnds = () => view.x ?? across.ends;
    const yEnds = () => {
      if (view.y) return view.y;
      if (!view.x && view.log === up.log) return up.ends;
      const [from, to] = xEnds();
      const seen = lines.filter(isShown).flatMap((line) => line.points);
      const values = seen.filter((point) => point.x >= from && point.x <= to).map((point) => point.y);
      if (up.include !== null) values.push(up.include);
      const placed = values.filter((value) => !view.log || value > 0);
      if (placed.length === 0) return up.log === view.log ? up.ends : [1, 10];
      const low = Math.min(...placed), high = Math.max(...placed);
      return widen(!view.log && low > 0 && up.include === null ? 0 : low, high, view.log);
    };
    const maps = () => [map(xEnds(), across.log, LEFT, right), map(yEnds(), view.log, bottom, TOP)];
    const canLog = lines.some((line) => line.points.some((point) => point.y > 0));

    const axisMarks = (axis, ends, log, most) => {
      if (axis.names.length > 0) {
        return [axis.names.filter(([value]) => value >= ends[0] && value <= ends[1]), axis.title];
      }
      const marks = (log ? logarithmic : linear)(...ends, most);
      const [names, unit] = labels(marks, axis.quantity, log);
      const named = marks.map((mark, index) => [mark, names[index]]);
      return [named.filter(([, name], index) => name !== names[index - 1]), unit ? `${axis.title} (${unit})` : axis.title];
    };

    const redraw = () => {
      draw();
      const [low, high] = xEnds();
      read(cursor !== null && cursor >= low && cursor <= high ? cursor : null);
    };
    const draw = () => {
      logButton.setAttribute("aria-pressed", String(view.log));
      resetButton.disabled = !view.x && !view.y && view.log === up.log;
      if (resetButton.disabled) {
        chart.replaceChildren(...drawn);
        return;
      }
      const [atX, atY] = maps();
      const [xMarks, xTitle] = axisMarks(across, xEnds(), across.log, 6);
      const [yMarks, yTitle] = axisMarks({ ...up, names: [] }, yEnds(), view.log, 6);
      const names = svg("g", { class: "soft", fill: "currentColor" });
      let grid = "", free = -Infinity;
      for (const [value, name] of yMarks) {
        grid += `M${LEFT} ${px(atY(value))}H${right}`;
        names.append(svg("text", { x: LEFT - 6, y: px(atY(value) + 4), "text-anchor": "end" }, name));
      }
      for (const [value, name] of xMarks) {
        const at = atX(value), half = (name.length * CHARACTER) / 2;
        if (at - half >= free) {
          free = at + half + 4;
          grid += `M${px(at)} ${TOP}V${bottom}`;
          names.append(svg("text", { x: px(at), y: bottom + 18, "text-anchor": "middle" }, name));
        }
      }
      names.append(svg("text", { x: px((LEFT + right) / 2), y: height - 8, "text-anchor": "middle" }, xTitle));
      const inside = svg("clipPath", { id: clip });
      inside.append(svg("rect", { x: LEFT - 5, y: TOP - 5, width: right - LEFT + 10, height: bottom - TOP + 10 }));
      const plot = svg("g", { "clip-path": `url(#${clip})` });
      for (const line of [...lines].reverse()) {
        const group = svg("g", { class: `line ${line.colour} ${line.look}` });
        let path = "";
        for (const part of line.parts) {
          let pen = "M";
          for (const point of part) {
            const [atPointX, atPointY] = [px(atX(point.x)), px(atY(point.y))];
            if (Number.isNaN(Number(atPointX)) || Number.isNaN(Number(atPointY))) {
              pen = "M";
              continue;
            }
            path += pen === "L" && line.step ? `H${atPointX}V${atPointY}` : `${pen}${atPointX} ${atPointY}`;
            pen = "L";
            if (line.outline) group.append(svg("path", { class: "mark", d: `M${atPointX} ${atPointY}${line.outline}`, fill: "currentColor" }));
          }
        }
        const stroke = svg("path", { d: path, fill: "none", stroke: "currentColor", "stroke-width": line.width, "stroke-linejoin": "round" });
        if (line.dash) stroke.setAttribute("stroke-dasharray", line.dash);
        group.prepend(stroke);
        plot.append(group);
      }
      chart.replaceChildren(
        svg("path", { class: "grid", d: grid, stroke: "currentColor" }),
        svg("path", { class: "axis", d: `M${LEFT} ${bottom}H${right}`, stroke: "currentColor" }),
        names,
        svg("text", { class: "ink", x: 8, y: TOP - 12, fill: "currentColor" }, yTitle),
        inside,
        plot,
      );
    };

    const zoom = (factor) => {
      const at = place(across.log), back = unplace(across.log);
      const [low, high] = xEnds().map(at);
      const middle = cursor === null ? (low + high) / 2 : at(cursor);
      const wanted = [middle - (middle - low) * factor, middle + (high - middle) * factor];
      const [first, last] = across.ends.map(at);
      const inside = [Math.max(wanted[0], first), Math.min(wanted[1], last)];
      const whole = inside[0] <= first && inside[1] >= last;
      if (!whole && !(inside[1] - inside[0] > 1e-9 * (last - first))) return;
      [view.x, view.y] = [whole ? null : inside.map(back), null];
      redraw();
    };
    const reset = () => {
      [view.x, view.y, view.log] = [null, null, up.log];
      redraw();
    };
    const toggle = () => {
      if (!canLog) return;
      [view.log, view.y] = [!view.log, null];
      redraw();
    };

    // What the lines say at a place of the x axis: the nearest point, or where a value holds until the next, the last one.
    const atCursor = (value) => {
      const [atX, atY] = maps();
      return lines.filter(isShown).flatMap((line) => {
        const before = line.points.filter((point) => point.x <= value * (1 + SLACK) + SLACK);
        let point = line.step ? before[before.length - 1] : undefined;
        for (const other of line.step ? [] : line.points) {
          if (!point || Math.abs(atX(other.x) - atX(value)) < Math.abs(atX(point.x) - atX(value))) point = other;
        }
        const isNear = point && (line.step || Math.abs(atX(point.x) - atX(value)) < 16);
        return isNear && Number.isFinite(atY(point.y)) ? [{ line, point }] : [];
      });
    };
    // Of an axis by the share of messages, the size of the message at a place.
    const sizeAt = (value) => (across.sizes.find(([place]) => place >= value * (1 - 1e-5)) ?? across.sizes[across.sizes.length - 1])[1];
    const bySize = across.sizes.length > 0;
    const xName = (value) => {
      if (bySize) return UNITS.bytes(sizeAt(value));
      return across.names.find(([place]) => place === value)?.[1] ?? UNITS[across.quantity](value);
    };
    const read = (value) => {
      chart.querySelector(".cursor")?.remove();
      const found = value === null ? [] : atCursor(value);
      cursor = found.length > 0 ? value : null;
      reading.hidden = cursor === null;
      if (cursor === null) return;
      const [atX, atY] = maps();
      const group = svg("g", { class: "cursor" });
      const at = atX(value);
      group.append(svg("path", { class: "axis", d: `M${px(at)} ${TOP}V${bottom}`, stroke: "currentColor" }));
      for (const { line, point } of found) {
        const y = Math.min(Math.max(atY(point.y), TOP), bottom);
        group.append(svg("circle", { class: line.colour, cx: px(line.step ? at : atX(point.x)), cy: px(y), r: 4, fill: "currentColor" }));
      }
      chart.append(group);
      const rows = found.map(({ line, point }) => {
        const row = element("div");
        row.append(element("span", `dot ${line.colour}`), point.note ?? `${line.name}: ${UNITS[up.quantity](point.y)}`);
        return row;
      });
      const isNoted = found.some(({ point }) => point.note !== undefined);
      const head = element("div", "", isNoted ? "" : `${across.title}: ${xName(value)}`);
      reading.replaceChildren(...(isNoted ? [] : [head]), ...rows);
      const box = chart.getBoundingClientRect(), outer = figure.getBoundingClientRect();
      const left = box.left - outer.left + (at / width) * box.width;
      const isRight = at > (LEFT + right) / 2;
      reading.style.top = `${box.top - outer.top + 8}px`;
      reading.style.left = isRight ? "auto" : `${left + 12}px`;
      reading.style.right = isRight ? `${outer.width - left + 12}px` : "auto";
    };
    const pixelOf = (event) => {
      const box = chart.getBoundingClientRect();
      const limit = (value, low, high) => Math.min(Math.max(value, low), high);
      return [
        limit(((event.clientX - box.left) / box.width) * width, LEFT, right),
        limit(((event.clientY - box.top) / box.height) * height, TOP, bottom),
      ];
    };
    const valueAt = (pixel) => {
      const value = inverse(xEnds(), across.log, LEFT, right)(pixel);
      if (lines.every((line) => line.step)) return value;
      // Lines of points are read at the nearest point.
      const [atX] = maps();
      const places = lines.filter(isShown).flatMap((line) => line.points.map((point) => point.x));
      return places.reduce((best, place) => (best === null || Math.abs(atX(place) - pixel) < Math.abs(atX(best) - pixel) ? place : best), null);
    };

    let from = null;
    const band = svg("rect", { class: "band" });
    chart.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      from = pixelOf(event);
      chart.setPointerCapture(event.pointerId);
    });
    chart.addEventListener("pointermove", (event) => {
      const to = pixelOf(event);
      if (from && Math.abs(to[0] - from[0]) > 8) {
        read(null);
        const tall = Math.abs(to[1] - from[1]) > 24;
        const box = [Math.min(from[0], to[0]), tall ? Math.min(from[1], to[1]) : TOP];
        const size = [Math.abs(to[0] - from[0]), tall ? Math.abs(to[1] - from[1]) : bottom - TOP];
        for (const [key, value] of [["x", box[0]], ["y", box[1]], ["width", size[0]], ["height", size[1]]]) band.setAttribute(key, px(value));
        chart.append(band);
      } else if (!from) {
        read(valueAt(to[0]));
      }
    });
    chart.addEventListener("pointerup", (event) => {
      const to = pixelOf(event), start = from;
      from = null;
      band.remove();
      if (!start || Math.abs(to[0] - start[0]) <= 8) {
        read(valueAt(to[0]));
        return;
      }
      const ofX = inverse(xEnds(), across.log, LEFT, right), ofY = inverse(yEnds(), view.log, bottom, TOP);
      const ends = (of, one, other) => [of(one), of(other)].sort((a, b) => a - b);
      const y = Math.abs(to[1] - start[1]) > 24 ? ends(ofY, start[1], to[1]) : null;
      [view.x, view.y] = [ends(ofX, start[0], to[0]), y];
      redraw();
    });
    chart.addEventListener("pointercancel", () => {
      from = null;
      band.remove();
    });
    chart.addEventListener("pointerleave", () => from || read(null));
    chart.addEventListener("dblclick", reset);
    chart.addEventListener("blur", () => read(null));

    const step = (towards) => {
      const [low, high] = xEnds();
      const all = lines.filter(isShown).flatMap((line) => line.points.map((point) => point.x));
      const places = [...new Set(all)].filter((place) => place >= low && place <= high).sort((a, b) => a - b);
      if (places.length === 0) return;
      const next = towards > 0 ? places.findIndex((place) => place > (cursor ?? -Infinity)) : places.findLastIndex((place) => place < (cursor ?? Infinity));
      read(next === -1 ? places[towards > 0 ? places.length - 1 : 0] : places[next]);
    };
    const KEYS = {
      ArrowRight: () => step(1), ArrowLeft: () => step(-1),
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
      0: reset, Escape: reset, l: toggle,
    };
    chart.addEventListener("keydown", (event) => {
      const act = KEYS[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });

    const file = (title.toLowerCase().replace(/[^a-z0-9.]+/g, "-").replace(/^-|-$/g, "") || "chart");
    const saveSvg = () => {
      read(null);
      const shown = lines.filter(isShown);
      let [at, row] = [8, 0];
      const legend = shown.map((line) => {
        const room = 46 + line.name.length * CHARACTER;
        if (at + room > width && at > 8) [at, row] = [8, row + 1];
        const place = [at, 38 + row * LEGEND_ROW];
        at += room;
        const entry = svg("g", { class: line.colour, transform: `translate(${px(place[0])} ${place[1] - 5})` });
        const sample = svg("path", { d: "M0 5H28", stroke: "currentColor", "stroke-width": 2 });
        if (line.dash) sample.setAttribute("stroke-dasharray", line.dash);
        entry.append(sample);
        if (line.outline) entry.append(svg("path", { class: "mark", d: `M14 5${line.outline}`, fill: "currentColor" }));
        entry.append(svg("text", { class: "ink", x: 34, y: 9, fill: "currentColor" }, line.name));
        return entry;
      });
      const head = 24 + (row + 1) * LEGEND_ROW;
      const picture = svg("svg", { viewBox: `0 0 ${width} ${height + head}`, width, height: height + head, "font-family": "Helvetica, Arial, sans-serif", "font-size": 12 });
      const colours = document.body.dataset.colours.split(" ").map((colour, index) => `.s${index}{color:${colour}}`);
      picture.append(svg("style", {}, `.ink{color:#1b1f24}.soft{color:#57606a}.axis{color:#8c959f}.grid{color:#e4e7eb}.mark{stroke:#fff}${colours.join("")}`));
      picture.append(svg("rect", { width, height: height + head, fill: "#fff" }));
      picture.append(svg("text", { class: "ink", x: 8, y: 20, "font-size": 14, "font-weight": 600, fill: "currentColor" }, title), ...legend);
      const plot = svg("g", { transform: `translate(0 ${head})` });
      plot.append(...[...chart.cloneNode(true).childNodes]);
      for (const line of lines.filter((it) => !isShown(it))) plot.querySelector(`.line.${line.look}`)?.remove();
      picture.append(plot);
      save(`${file}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(picture));
    };
    const saveCsv = () => {
      const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
      const unit = { micros: " (us)", bytes: " (bytes)" };
      const points = lines.flatMap((line) => line.points);
      // Places with names of their own stand for what is swept.
      const isNamed = !bySize && across.names.length > 0 && points.every((point) => across.names.some(([place]) => place === point.x));
      const xTitle = across.title + (isNamed || bySize ? "" : unit[across.quantity] ?? "");
      const share = bySize ? ["share of messages"] : [];
      const rows = [["line", ...share, xTitle, up.title + (unit[up.quantity] ?? "")]];
      for (const line of lines.filter(isShown)) {
        for (const point of line.points) {
          const x = bySize ? [point.x, sizeAt(point.x)] : [isNamed ? xName(point.x) : point.x];
          rows.push([line.name, ...x, point.y].map(String));
        }
      }
      save(`${file}.csv`, "text/csv", rows.map((row) => row.map(quoted).join(",") + "\n").join(""));
    };

    const tools = element("div", "tools");
    const button = (text, label, act) => {
      const node = element("button", "", text);
      node.type = "button";
      node.title = label;
      node.setAttribute("aria-label", `${label}: ${title}`);
      node.addEventListener("click", act);
      tools.append(node);
      return node;
    };
    const logButton = button("log", "logarithmic y axis (l)", toggle);
    logButton.disabled = !canLog;
    button("+", "zoom in (+)", () => zoom(0.5));
    button("\u2212", "zoom out (-)", () => zoom(2));
    const resetButton = button("reset", "whole chart (0)", reset);
    button("SVG", "save as SVG", saveSvg);
    button("CSV", "save the points as CSV", saveCsv);
    const reading = element("div", "reading");
    reading.setAttribute("role", "status");
    reading.hidden = true;
    chart.tabIndex = 0;
    chart.setAttribute("aria-label", `${title}: arrow keys read values, plus and minus zoom`);
    figure.classList.add("live");
    figure.append(tools, reading);
    section.addEventListener("change", () => read(null));
    redraw();
  };

  document.querySelectorAll("figure > script").forEach((data) => enhance(data.parentElement));

  // Paper has no folds.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((fold) => (fold.open = true));
  });
  addEventListener("afterprint", () => opened.splice(0).forEach((fold) => (fold.open = false)));
}
