"use strict";
// `hosts/page/src/elements.js` stands before it.
(() => {
  const token = document.querySelector("meta[name=rackweave-token]").content;

  // ---- Numbers -------------------------------------------------------------------------------------------------------------------

  const digits = (number) => number.toFixed(number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2);
  const bytes = (number) => {
    let unit = 0;
    while (number >= 999.5 && unit < 5) {
      number /= 1000;
      unit += 1;
    }
    return `${unit === 0 ? number : digits(number)} ${["B", "KB", "MB", "GB", "TB", "PB"][unit]}`;
  };
  /** A duration of simulated time in nanoseconds. */
  const span = (ns) => {
    if (ns < 999.5) return `${Math.round(ns * 100) / 100} ns`;
    if (ns < 999_500) return `${digits(ns / 1e3)} us`;
    if (ns < 999.5e6) return `${digits(ns / 1e6)} ms`;
    return `${digits(ns / 1e9)} s`;
  };
  /** A point of simulated time. */
  const time = (ns) => `${(ns / 1e3).toLocaleString("en", { maximumFractionDigits: 3 })} us`;

  // ---- Elements ------------------------------------------------------------------------------------------------------------------

  const button = (text, action) => {
    const node = element("button", "", text);
    node.type = "button";
    node.addEventListener("click", action);
    return node;
  };
  /** Fills the rows of a table: a list of cells each, texts or elements; cells whose heading is a number's are set right. */
  const fill = (table, rows) => {
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.className);
    const body = table.tBodies[0];
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((cells, at) => {
      const row = body.rows[at] || body.insertRow();
      cells.forEach((cell, nth) => {
        const node = row.cells[nth] || row.insertCell();
        setClass(node, heads[nth]);
        if (cell instanceof Node) {
          node.replaceChildren(cell);
        } else {
          set(node, cell);
        }
      });
    });
  };
  const table = (heads) => {
    const node = element("table");
    const row = node.createTHead().insertRow();
    for (const head of heads) row.append(element("th", head.startsWith("#") ? "number" : "", head.replace("#", "")));
    node.createTBody();
    return node;
  };
  const boxed = (node) => {
    const box = element("div", "scroll");
    box.tabIndex = 0;
    box.append(node);
    return box;
  };

  // ---- Requests ------------------------------------------------------------------------------------------------------------------

  let saidTimer = 0;
  const say = (text) => {
    set(byId("said"), text);
    clearTimeout(saidTimer);
    if (text) saidTimer = setTimeout(() => say(""), 12000);
  };
  /** Changes the session; returns the reason if that is refused. */
  const post = async (path, asked) => {
    const headers = { "content-type": "application/json", "x-rackweave-token": token };
    try {
      const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(asked) });
      return response.ok ? "" : await response.text();
    } catch {
      return "the command does not answer: has it been ended?";
    }
  };
  const control = async (asked) => say(await post("control", asked));

  // ---- State ---------------------------------------------------------------------------------------------------------------------

  /** What stays the same until the next start; what changes; what is on the page of each lane. */
  let session = null;
  let shown = null;
  let lanes = [];
  let connection = "connecting";
  /** Called once the lanes wait or are over. */
  let waiters = [];

  const settled = () =>
    new Promise((done) => {
      waiters.push(done);
    });

  // ---- The fabric ----------------------------------------------------------------------------------------------------------------

  const RAMP = [[47, 127, 208], [224, 168, 0], [194, 37, 58]];
  let look = null;
  const readLook = () => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const parse = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
    look = { card: of("--card"), text: of("--text"), quiet: of("--quiet"), line: of("--line"), box: of("--box"), stops: [parse(of("--idle")), ...RAMP] };
  };
  const heat = (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (look.stops.length - 1);
    const low = Math.min(Math.floor(at), look.stops.length - 2);
    const mix = look.stops[low].map((from, nth) => Math.round(from + (look.stops[low + 1][nth] - from) * (at - low)));
    return `rgb(${mix.join(",")})`;
  };
  /** The share of its buffer that a port holds, or else of what it may hold before it marks, doubled. */
  const fullness = (link, held) => {
    if (link.buffer) return held / link.buffer;
    return held / Math.max(link.threshold ? link.threshold * 4 : 200_000, 1);
  };
  const place = (layout, width, height) => {
    const top = 24;
    const bottom = height - 26;
    const rise = (bottom - top) / Math.max(layout.tiers - 1, 1);
    return layout.places.map((it) => ({ x: 8 + it.across * (width - 16), y: bottom - it.tier * rise, ...it }));
  };
  /** Empties a canvas of this height; returns its width and a pen. */
  const clear = (canvas, height) => {
    const width = canvas.clientWidth || 400;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    return [width, pen];
  };
  const drawFabric = (canvas, layout, picture, height) => {
    const [width, pen] = clear(canvas, height);
    const places = place(layout, width, height);
    const segments = layout.links.map((link, nth) => {
      const [from, to] = [places[link.from], places[link.to]];
      // The two directions of a cable are next to each other.
      const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
      const aside = layout.links.length > 800 ? 0.6 : 1.7;
      const [dx, dy] = [(-(to.y - from.y) / length) * aside, ((to.x - from.x) / length) * aside];
      return { link, nth, x1: from.x + dx, y1: from.y + dy, x2: to.x + dx, y2: to.y + dy };
    });
    const util = (nth) => (picture ? picture.util[nth] / 1000 : 0);
    const thin = layout.links.length > 800 ? 1 : 2;
    for (const it of [...segments].sort((one, other) => util(one.nth) - util(other.nth))) {
      pen.strokeStyle = heat(util(it.nth));
      pen.lineWidth = thin + 1.5 * util(it.nth);
      pen.beginPath();
      pen.moveTo(it.x1, it.y1);
      pen.lineTo(it.x2, it.y2);
      pen.stroke();
    }
    if (picture) {
      for (const it of segments) {
        const held = picture.queue[it.nth];
        if (held === 0) continue;
        const share = fullness(it.link, held);
        const at = it.link.to < layout.hosts ? 0.66 : 0.3;
        pen.fillStyle = heat(0.3 + 0.7 * share);
        pen.strokeStyle = look.card;
        pen.lineWidth = 1;
        pen.beginPath();
        pen.arc(it.x1 + (it.x2 - it.x1) * at, it.y1 + (it.y2 - it.y1) * at, 3 + 6 * Math.min(share, 1), 0, 7);
        pen.fill();
        pen.stroke();
      }
    }
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const tiers = new Map();
    for (const it of places) tiers.set(it.tier, [...(tiers.get(it.tier) ?? []), it]);
    const pitchOf = (tier) => (width - 16) / tiers.get(tier).length;
    for (const it of places) {
      const pitch = pitchOf(it.tier);
      const half = Math.min(it.tier === 0 ? 15 : 32, pitch / 2 - 1);
      pen.fillStyle = look.box;
      pen.strokeStyle = look.line;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.rect(it.x - half, it.y - 9, 2 * half, 18);
      pen.fill();
      pen.stroke();
    }
    // Where not all names have room, each second one is written, or each third.
    pen.fillStyle = look.text;
    for (const [tier, row] of tiers) {
      const widest = Math.max(...row.map((it) => pen.measureText(it.name).width));
      const every = Math.ceil((widest + 4) / pitchOf(tier));
      row.filter((_, nth) => nth % every === 0).forEach((it) => pen.fillText(it.name, it.x, it.y + 0.5));
    }
    return segments;
  };

  const nearest = (segments, x, y) => {
    let best = null;
    let least = 7;
    for (const it of segments) {
      const [dx, dy] = [it.x2 - it.x1, it.y2 - it.y1];
      const along = Math.min(Math.max(((x - it.x1) * dx + (y - it.y1) * dy) / (dx * dx + dy * dy || 1), 0), 1);
      const away = Math.hypot(it.x1 + along * dx - x, it.y1 + along * dy - y);
      if (away < least) [best, least] = [it, away];
    }
    return best;
  };
  const portText = (link, picture, nth) => {
    const held = picture ? picture.queue[nth] : 0;
    const limit = link.buffer ? ` of ${bytes(link.buffer)}` : "";
    const marks = link.threshold ? `, marks above ${bytes(link.threshold)}` : "";
    const used = picture ? `${(picture.util[nth] / 10).toFixed(1)} % used` : "idle";
    return `${link.name}: ${link.gbps} Gbit/s, ${used}, queue ${bytes(held)}${limit}${marks}${picture && picture.drops[nth] ? `, ${count(picture.drops[nth])} dropped` : ""}`;
  };

  // ---- Goodput -------------------------------------------------------------------------------------------------------------------

  const COLORS = ["#2f7fd0", "#e07b00", "#2a9d5a", "#a24fc0", "#c2253a", "#7a7f87"];
  const drawGoodput = (canvas, { series, at_ns: now }) => {
    const height = 120;
    const [width, pen] = clear(canvas, height);
    // The last interval is not over.
    const over = Math.floor(now / series.interval_ns);
    const rates = series.bytes.map((of) => of.slice(0, over).map((sum) => (sum * 8) / series.interval_ns));
    const length = Math.max(1, ...rates.map((of) => of.length));
    const most = Math.max(1, ...rates.map((of) => of.reduce((max, rate) => Math.max(max, rate), 0)));
    const [left, bottom] = [8, height - 18];
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = look.quiet;
    pen.fillText(`up to ${digits(most)} Gbit/s`, left, 12);
    pen.fillText("0", left, height - 4);
    pen.textAlign = "right";
    pen.fillText(span(length * series.interval_ns), width - 8, height - 4);
    rates.forEach((of, stream) => {
      pen.strokeStyle = COLORS[stream % COLORS.length];
      pen.lineWidth = 1.6;
      pen.beginPath();
      of.forEach((rate, at) => {
        const x = left + ((at + 0.5) / length) * (width - 16);
        const y = bottom - (rate / most) * (bottom - 20);
        if (at === 0) pen.moveTo(x, y);
        else pen.lineTo(x, y);
      });
      pen.stroke();
    });
  };

  // ---- Lanes ---------------------------------------------------------------------------------------------------------------------

  const addLane = (number, described) => {
    const root = element("div", "lane");
    const lane = { number, described, root, tiles: new Map(), segments: [], picture: null };
    lane.title = element("h2", "", session.lanes.length > 1 ? `${"AB"[number]}: ${described.sets.join(", ") || "as in the file"}` : described.name);
    lane.canvas = element("canvas");
    lane.canvas.setAttribute("role", "img");
    lane.canvas.setAttribute("aria-label", "The fabric; the table of busiest ports has its numbers");
    lane.readout = element("p", "quiet", "Point at a link for its numbers.");
    const legend = element("p", "legend");
    const scale = element("span");
    scale.append("link use 0", element("span", "ramp"), "100 %");
    legend.append(scale, element("span", "", "circles: bytes in a port's queue, red when its buffer is full"));
    lane.tileBox = element("div", "tiles");
    lane.chart = element("canvas");
    lane.chart.setAttribute("role", "img");
    lane.chart.setAttribute("aria-label", "Goodput over time, by stream");
    lane.streams = element("p", "legend");
    described.streams.forEach((label, stream) => {
      const swatch = element("span", "swatch");
      swatch.style.background = COLORS[stream % COLORS.length];
      const entry = element("span");
      entry.append(swatch, `${described.streams.length > 1 ? `stream ${stream}, ` : ""}${label}`);
      lane.streams.append(entry);
    });
    lane.ports = table(["Port", "#Queue", "#Of its buffer", "#Link used", "#Dropped"]);
    lane.waiting = table(["Message", "#Bytes left", "#Of", "#Waits for", "Since"]);
    lane.slowest = table(["Message", "#Number", "#Bytes", "#Took", "#Slowdown"]);
    lane.waitingNote = element("p", "empty");
    lane.slowestNote = element("p", "empty");
    lane.outcome = element("div");
    const pair = element("div", "pair");
    const part = (title, ...nodes) => {
      const box = element("div");
      box.append(element("h3", "", title), ...nodes);
      pair.append(box);
      return box;
    };
    part("Goodput by stream", lane.chart, lane.streams);
    part("Busiest ports", boxed(lane.ports));
    lane.waitingPart = part("Waiting longest", boxed(lane.waiting), lane.waitingNote);
    lane.slowestPart = part("Slowest that have ended", boxed(lane.slowest), lane.slowestNote);
    const hasMessages = described.has_messages;
    lane.waitingPart.hidden = !hasMessages;
    lane.slowestPart.hidden = !hasMessages;
    const notes = described.notes.map((note) => element("p", "quiet", `note: ${note}`));
    root.append(lane.title, ...notes, lane.canvas, legend, lane.readout, lane.tileBox, pair, lane.outcome);
    lane.canvas.addEventListener("pointermove", (event) => {
      const box = lane.canvas.getBoundingClientRect();
      const found = nearest(lane.segments, event.clientX - box.left, event.clientY - box.top);
      if (found) set(lane.readout, portText(found.link, lane.picture, found.nth));
    });
    return lane;
  };

  const tile = (lane, label, value, note = "", className = "") => {
    if (!lane.tiles.has(label)) {
      const node = element("div", "tile");
      node.append(element("div", "label", label), element("div", "value"), element("div", "note"));
      lane.tileBox.append(node);
      lane.tiles.set(label, node);
    }
    const node = lane.tiles.get(label);
    setClass(node, `tile ${className}`.trim());
    set(node.children[1], value);
    set(node.children[2], note);
  };

  const heightOf = (layout) => 70 + 95 * (layout.tiers - 1);
  const ends = (message) => `h${message.src} → h${message.dst}${message.stream ? `, stream ${message.stream}` : ""}`;
  const traceButton = (lane, message) => {
    const node = button(ends(message), () => takeTrace({ lane: lane.number, message }));
    node.title = "Show its packets";
    return node;
  };

  const showTiles = (lane, it) => {
    const parts = lane.described.streams.length;
    const all = it.goodput_gbps.reduce((sum, rate) => sum + rate, 0);
    const each = parts > 1 ? it.goodput_gbps.map((rate, stream) => `stream ${stream}: ${digits(rate)}`).join(", ") : `in the last ${span(it.interval_ns)}`;
    if (lane.described.has_messages) {
      tile(lane, "Goodput", `${digits(all)} Gbit/s`, each);
      tile(lane, "Messages", it.wanted ? `${count(it.ended)} of ${count(it.wanted)}` : count(it.ended), it.at_ns < lane.described.warmup_ns ? `warm-up until ${time(lane.described.warmup_ns)}` : `ended; ${count(it.started)} started`);
      tile(lane, "Unfinished", count(it.unfinished), `${bytes(it.backlog)} of all streams`);
    }
    const longest = it.queue.reduce((max, held) => Math.max(max, held), 0);
    tile(lane, "Longest queue", bytes(longest), `${bytes(it.queue.reduce((sum, held) => sum + held, 0))} in all queues`);
    tile(lane, "Dropped", count(it.all_drops), `${count(it.trims)} trimmed, ${count(it.marks)} marked`, it.all_drops > 0 ? "warn" : "");
    tile(lane, "Speed", it.end ? "ended" : it.waits ? "waits" : `${span(it.speed)} / s`, `${count(it.events)} events, ${count(it.packets)} packets under way`);
  };

  const showLane = (lane, news) => {
    const it = news.picture;
    // The same picture again would take the focus from its lists.
    const key = it ? `${it.at_ns} ${it.waits} ${it.end}` : "";
    if (it && key !== lane.key) {
      lane.key = key;
      lane.picture = it;
      const { layout } = lane.described;
      lane.segments = drawFabric(lane.canvas, layout, it, heightOf(layout));
      showTiles(lane, it);
      drawGoodput(lane.chart, it);
      const ports = layout.links.map((link, nth) => ({ link, nth })).filter(({ link }) => link.from >= layout.hosts);
      const weight = ({ nth }) => it.queue[nth] * 1e4 + it.util[nth];
      ports.sort((one, other) => weight(other) - weight(one));
      fill(lane.ports, ports.slice(0, 10).map(({ link, nth }) => [
        link.name, bytes(it.queue[nth]), link.buffer ? `${((100 * it.queue[nth]) / link.buffer).toFixed(1)} %` : "no limit",
        `${(it.util[nth] / 10).toFixed(1)} %`, count(it.drops[nth]),
      ]));
      const keep = (node) => node.contains(document.activeElement) && !it.waits;
      if (!keep(lane.waiting)) {
        fill(lane.waiting, it.waiting.map(({ message, left }) => [
          traceButton(lane, message), left === null ? "–" : left > message.bytes ? `${bytes(left)} with response` : bytes(left), bytes(message.bytes), span(it.at_ns - message.start_ns), time(message.start_ns),
        ]));
      }
      lane.waiting.parentNode.hidden = it.waiting.length === 0;
      set(lane.waitingNote, it.at_ns < lane.described.warmup_ns ? `Messages that start before ${time(lane.described.warmup_ns)}, in the warm-up, are not listed.` : it.waiting.length === 0 ? "Nothing waits." : it.unfinished > it.waiting.length ? `and ${count(it.unfinished - it.waiting.length)} more` : "");
      if (it.messages !== null && !keep(lane.slowest)) {
        fill(lane.slowest, it.slowest.map(({ message, number, latency_ns, slowdown }) => [
          traceButton(lane, message), count(number), bytes(message.bytes), span(latency_ns), `${digits(slowdown)} times`,
        ]));
      }
      lane.slowest.parentNode.hidden = lane.slowest.tBodies[0].rows.length === 0;
      set(lane.slowestNote, it.messages === null ? "As of the last pause; pause for the present ones." : it.slowest.length === 0 ? "None has ended." : "");
      lane.slowest.parentNode.classList.toggle("dim", it.messages === null);
    }
    const { outcome } = news;
    if (outcome && lane.outcome.childElementCount === 0) {
      const texts = { finished: `The run has ended (${it ? it.end : "no network to watch"}). Its results, those of rackweave run:`, stopped: "Stopped.", failed: "The simulator failed:" };
      lane.outcome.append(element("h3", "", texts[outcome.state]));
      if (outcome.text) lane.outcome.append(element("pre", "", outcome.text));
      if (outcome.state === "finished") {
        const link = element("a", "", "summary.json");
        link.href = `summary.json?lane=${lane.number}`;
        lane.outcome.append(link);
      }
    }
  };

  // ---- Settings ------------------------------------------------------------------------------------------------------------------

  const keyOf = (text) => text.split("=")[0].trim();
  const valueOf = (text) => text.slice(text.indexOf("=") + 1).trim();
  let extra = [];

  const showSettings = () => {
    const [lane] = session.lanes;
    set(byId("name"), lane.name);
    set(byId("command"), lane.command);
    byId("alone").hidden = session.lanes.length === 1;
    const own = new Map(session.sets.map((text) => [keyOf(text), valueOf(text)]));
    const known = lane.controls.map((it) => it.key);
    extra = session.sets.filter((text) => !known.includes(keyOf(text)));
    const labels = lane.controls.map(({ key, label, value, default: usual, why }) => {
      const node = element("label", "", label);
      if (key === "seed") node.className = "short";
      const input = element("input");
      input.name = key;
      input.autocomplete = "off";
      input.placeholder = value || (key.endsWith("ecn_threshold") ? "not used" : "not set");
      input.value = own.get(key) || "";
      if (key === "transport.name") {
        const list = element("datalist");
        list.id = "transports";
        for (const name of session.transports) list.append(element("option", "", name));
        input.setAttribute("list", "transports");
        node.append(list);
      }
      const reason = usual && usual !== value ? `by default ${usual}; now ${value}: ${why}` : why ? `${value}: ${why}` : key;
      node.append(input, element("span", "why", reason));
      return node;
    });
    byId("controls").replaceChildren(...labels);
    showExtra();
    byId("point-label").hidden = session.points.length < 2;
    byId("point").replaceChildren(...session.points.map((name, nth) => {
      const option = element("option", "", name || `point ${nth + 1}`);
      option.value = nth;
      option.selected = nth === session.point;
      return option;
    }));
    fill(byId("parameters"), lane.parameters.map(({ key, value, default: usual, why }) => {
      const node = button(key, () => {
        byId("free").value = `${key} = `;
        byId("free").focus();
      });
      return [node, value, usual, why];
    }));
  };
  const showExtra = () => {
    const chips = extra.map((text) => {
      const chip = button(`${text}  ✕`, () => {
        extra = extra.filter((other) => other !== text);
        showExtra();
      });
      chip.title = "Take this back";
      return chip;
    });
    byId("is-set").replaceChildren(...(chips.length ? ["further keys: ", ...chips] : []));
  };
  const gathered = () => {
    const typed = [...byId("controls").querySelectorAll("input")].filter((input) => input.value.trim() !== "");
    const sets = typed.map((input) => `${input.name}=${input.value.trim()}`);
    const free = byId("free").value.trim();
    const more = free ? [`${keyOf(free)}=${valueOf(free)}`] : [];
    return [...sets, ...extra.filter((text) => !more.some((other) => keyOf(other) === keyOf(text))), ...more];
  };
  const start = async (asked) => {
    const why = await post("start", { point: Number(byId("point").value || 0), ...asked });
    byId("error").hidden = why === "";
    set(byId("error"), why);
    if (why === "") byId("free").value = "";
    return why === "";
  };
  const present = () => Math.max(0, ...lanes.map((lane) => (lane.picture ? lane.picture.at_ns : 0)));
  /** Starts, and runs up to the present time. */
  const startHere = async (asked) => {
    const at = present();
    if ((await start(asked)) && at > 0) await control({ do: "step", ns: at });
  };
  byId("settings").addEventListener("submit", (event) => {
    event.preventDefault();
    start({ sets: gathered() });
  });
  byId("compare").addEventListener("click", () => {
    const compare = gathered().filter((text) => !session.sets.includes(text));
    if (compare.length === 0) return say("Change a value first: the second run would be the same.");
    startHere({ sets: session.sets, compare });
  });
  byId("alone").addEventListener("click", () => startHere({ sets: session.sets }));
  byId("restart").addEventListener("click", () => {
    const [one, other] = session.lanes;
    const compare = other ? other.sets.filter((text) => !one.sets.includes(text)) : null;
    start({ sets: session.sets, compare });
  });

  // ---- Controls ------------------------------------------------------------------------------------------------------------------

  const speed = () => (byId("speed").value === "" ? null : Number(byId("speed").value));
  byId("run").addEventListener("click", () => control({ do: "run", speed: speed() }));
  byId("pause").addEventListener("click", () => control({ do: "pause" }));
  byId("stop").addEventListener("click", () => control({ do: "stop" }));
  byId("step").addEventListener("click", () => control({ do: "step", ns: Number(byId("span").value) }));
  byId("speed").addEventListener("change", () => {
    if (shown && shown.mode === "running") control({ do: "run", speed: speed() });
  });

  byId("film").addEventListener("click", async () => {
    const each = Number(byId("span").value);
    byId("film").disabled = true;
    byId("film-section").hidden = false;
    byId("frames").replaceChildren();
    set(byId("film-note"), `Six pictures, a step of ${span(each)} apart. Links are coloured by their use in that step.`);
    if (shown.mode === "running") {
      await control({ do: "pause" });
      await settled();
    }
    for (let nth = 0; nth < 6 && shown.mode !== "over"; nth += 1) {
      await control({ do: "step", ns: each });
      await settled();
      for (const lane of lanes) {
        if (!lane.picture) continue;
        const figure = element("figure");
        const canvas = element("canvas");
        const longest = lane.picture.queue.reduce((max, held) => Math.max(max, held), 0);
        figure.append(canvas, element("figcaption", "", `${lanes.length > 1 ? `${"AB"[lane.number]}, ` : ""}${time(lane.picture.at_ns)}: longest queue ${bytes(longest)}, ${bytes(lane.picture.backlog)} unfinished`));
        byId("frames").append(figure);
        drawFabric(canvas, lane.described.layout, lane.picture, 70 + 60 * (lane.described.layout.tiers - 1));
      }
    }
    byId("film").disabled = false;
  });

  // ---- The trace -----------------------------------------------------------------------------------------------------------------

  let trace = null;
  let traceNumber = 0;
  let view = [0, 1];
  let picked = null;
  const MOST_ROWS = 1500;
  const MOST_WAYS = 2500;

  const takeTrace = async (asked) => {
    const why = await post("trace", asked);
    set(byId("trace-state"), why);
    byId("trace-section").scrollIntoView({ block: "start" });
  };
  byId("number-form").addEventListener("submit", (event) => {
    event.preventDefault();
    takeTrace({ number: Number(byId("number").value) });
  });

  const rangeOf = (text) => {
    const found = /\[(\d+)\.\.(\d+)\)/.exec(text);
    return found ? found[0] : null;
  };
  const endOf = (packet) => {
    if (packet.fate.delivered) return `arrived ${time(packet.fate.delivered.at)}`;
    if (packet.fate.dropped) return `dropped ${time(packet.fate.dropped.at)}: ${packet.fate.dropped.why}`;
    return "under way when the trace ended";
  };
  const waited = (packet) => packet.hops.reduce((sum, hop) => sum + (hop.queued !== null && hop.sent !== null ? hop.sent - hop.queued : 0), 0);
  const prepare = (found) => {
    const seen = new Set();
    const { links } = lanes[found.lane].described.layout;
    found.levels = [];
    const longest = found.packets.reduce((max, packet) => Math.max(max, packet.fate.delivered ? packet.hops.length : 0), 1);
    for (const packet of found.packets) {
      const range = packet.has_payload ? `${packet.src} ${rangeOf(packet.text)}` : null;
      packet.kind = !packet.has_payload ? "control" : seen.has(range) ? "again" : "data";
      if (range) seen.add(range);
      if (packet.hops.some((hop) => hop.trimmed)) packet.kind = "cut";
      const forth = packet.src === found.src;
      packet.level = (nth) => (forth ? nth : longest - nth);
      packet.hops.forEach((hop, nth) => {
        for (const [level, at] of [[packet.level(nth), links[hop.link].from], [packet.level(nth + 1), links[hop.link].to]]) {
          if (!found.levels[level]) found.levels[level] = new Set();
          found.levels[level].add(at);
        }
      });
      packet.first = packet.hops.length ? (packet.hops[0].queued ?? packet.hops[0].sent) : 0;
      packet.last = packet.hops.reduce((max, hop) => Math.max(max, hop.arrival ?? hop.queued ?? 0), 0);
    }
    found.from = Math.min(found.start, ...found.packets.slice(0, 1).map((packet) => packet.first));
    found.to = found.packets.reduce((max, packet) => Math.max(max, packet.last), found.end ?? found.start) + 1;
  };

  const waysOf = (packet, x, y) => {
    const group = svg("g", {});
    let way = "";
    packet.hops.forEach((hop, nth) => {
      const level = y(packet.level(nth));
      if (hop.queued !== null) {
        const until = hop.sent ?? (packet.fate.dropped ? hop.queued : trace.traced_to);
        if (until > hop.queued) group.append(svg("path", { class: "hold", d: `M${x(hop.queued)} ${level}H${x(until)}` }));
      }
      if (hop.marked) group.append(svg("circle", { class: "dot", cx: x(hop.queued), cy: level, r: 3 }));
      if (hop.sent !== null) way += `M${x(hop.sent)} ${level}L${x(hop.arrival)} ${y(packet.level(nth + 1))}`;
    });
    group.append(svg("path", { class: `way ${packet.kind}`, d: way }), svg("path", { class: "hit", d: way || "M0 0" }));
    if (packet.fate.dropped) {
      const last = packet.hops[packet.hops.length - 1];
      const [cx, cy] = [x(packet.fate.dropped.at), y(packet.level(packet.hops.length - (last && last.sent === null ? 1 : 0)))];
      group.append(svg("path", { class: "lost", d: `M${cx - 5} ${cy - 5}l10 10m0 -10l-10 10` }));
    }
    return group;
  };

  const drawTrace = () => {
    const place = byId("diagram");
    const width = place.clientWidth || 800;
    const rows = trace.levels.length;
    const [left, top, pitch] = [64, 26, 78];
    const height = top + pitch * Math.max(rows - 1, 1) + 36;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height });
    const x = (ns) => Math.round((left + ((ns - view[0]) / (view[1] - view[0])) * (width - left - 14)) * 10) / 10;
    const y = (level) => top + pitch * level;
    const { places } = lanes[trace.lane].described.layout;
    const end = Math.min(trace.end ?? trace.traced_to, view[1]);
    picture.append(svg("rect", { class: "span", x: x(Math.max(trace.start, view[0])), y: 8, width: Math.max(0, x(end) - x(Math.max(trace.start, view[0]))), height: height - 38 }));
    trace.levels.forEach((at, level) => {
      picture.append(svg("path", { class: "level", d: `M${left} ${y(level)}H${width - 14}` }));
      const label = svg("text", { x: 4, y: y(level) + 4 });
      label.textContent = at.size === 1 ? places[[...at][0]].name : `${at.size} switches`;
      picture.append(label);
    });
    const parts = width < 640 ? 2 : 4;
    for (let nth = 0; nth <= parts; nth += 1) {
      const at = view[0] + ((view[1] - view[0]) * nth) / parts;
      const label = svg("text", { x: x(at), y: height - 6, "text-anchor": nth === 0 ? "start" : nth === parts ? "end" : "middle" });
      label.textContent = time(at);
      picture.append(label);
    }
    const inside = trace.packets.map((packet, nth) => [packet, nth]).filter(([packet]) => packet.first <= view[1] && packet.last >= view[0]);
    const clip = svg("svg", { x: left, y: 0, width: width - left - 6, height: height - 20, viewBox: `${left} 0 ${width - left - 6} ${height - 20}` });
    for (const [packet, nth] of inside.slice(0, MOST_WAYS)) {
      const group = waysOf(packet, x, y);
      if (nth === picked) group.setAttribute("class", "picked");
      group.addEventListener("click", () => pick(nth, false));
      clip.append(group);
    }
    picture.append(clip);
    place.replaceChildren(picture);
    const cut = inside.length > MOST_WAYS ? `; the first ${count(MOST_WAYS)} of ${count(inside.length)} packets are drawn: zoom in` : "";
    set(byId("window"), `${time(view[0])} to ${time(view[1])}${cut}`);
  };

  const pick = (nth, scrolls = true) => {
    picked = nth;
    const packet = trace.packets[nth];
    const { links } = lanes[trace.lane].described.layout;
    const hops = packet.hops.map((hop) => {
      const wait = hop.queued === null ? "" : hop.sent === null ? `queued ${time(hop.queued)} behind ${bytes(hop.behind)}, ` : `waited ${span(hop.sent - hop.queued)} behind ${bytes(hop.behind)}, `;
      return `${links[hop.link].name}: ${wait}${hop.marked ? "marked, " : ""}${hop.trimmed ? "trimmed, " : ""}${hop.sent === null ? "not sent" : `sent ${time(hop.sent)}`}`;
    });
    set(byId("chosen"), `Packet ${nth}: ${packet.text}. ${hops.join("; ")}; ${endOf(packet)}.`);
    [...byId("packets").tBodies[0].rows].forEach((row, at) => setClass(row, at === nth ? "chosen" : ""));
    if (packet.first < view[0] || packet.last > view[1]) {
      const half = Math.max((view[1] - view[0]) / 2, packet.last - packet.first);
      view = [Math.max(trace.from, packet.first - half), packet.first + half];
    }
    drawTrace();
    const row = byId("packets").tBodies[0].rows[nth];
    if (row && scrolls) row.scrollIntoView({ block: "nearest" });
  };

  const showTrace = () => {
    prepare(trace);
    byId("trace").hidden = false;
    // So many packets can be told apart.
    const part = trace.packets[Math.min(trace.packets.length, 120) - 1];
    view = [trace.from, part ? Math.min(part.last + 1, trace.to) : trace.to];
    picked = null;
    set(byId("chosen"), "Choose a packet in the diagram or the table for its hops.");
    const number = (kind) => trace.packets.filter(kind).length;
    const dropped = number((packet) => packet.fate.dropped);
    const what = trace.end === null ? `unfinished at ${time(trace.traced_to)}` : `ended ${time(trace.end)}, after ${span(trace.end - trace.start)}`;
    set(byId("trace-head"), `h${trace.src} → h${trace.dst}, ${bytes(trace.bytes)}, started ${time(trace.start)}, ${what}: ${count(trace.packets.length)} packets, ${count(number((packet) => packet.has_payload))} with data, ${count(number((packet) => packet.kind === "again"))} sent again, ${count(dropped)} dropped, ${count(number((packet) => packet.hops.some((hop) => hop.marked)))} marked, ${count(number((packet) => packet.kind === "cut"))} trimmed.${trace.is_cut ? " There were more events than are kept: these are the first." : ""}`);
    fill(byId("packets"), trace.packets.slice(0, MOST_ROWS).map((packet, nth) => [
      button(String(nth), () => pick(nth, false)), `h${packet.src}`, packet.text, count(packet.bytes), time(packet.first),
      packet.fate.delivered ? time(packet.fate.delivered.at) : "–", span(waited(packet)), packet.fate.delivered ? "arrived" : endOf(packet),
    ]));
    set(byId("more"), trace.packets.length > MOST_ROWS ? `The table has the first ${count(MOST_ROWS)} of ${count(trace.packets.length)} packets; the CSV file has all.` : "");
    drawTrace();
  };

  const zoom = (factor) => {
    const middle = picked === null ? (view[0] + view[1]) / 2 : trace.packets[picked].first;
    const half = Math.min(((view[1] - view[0]) / 2) * factor, (trace.to - trace.from) / 2);
    move(middle - half, middle + half);
  };
  const move = (from, to) => {
    const length = to - from;
    const start = Math.min(Math.max(from, trace.from), Math.max(trace.to - length, trace.from));
    view = [start, Math.min(start + length, trace.to)];
    drawTrace();
  };
  const slide = (share) => move(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));
  byId("in").addEventListener("click", () => zoom(0.5));
  byId("out").addEventListener("click", () => zoom(2));
  byId("left").addEventListener("click", () => slide(-0.5));
  byId("right").addEventListener("click", () => slide(0.5));
  byId("whole").addEventListener("click", () => move(trace.from, trace.to));
  byId("diagram").addEventListener("keydown", (event) => {
    const last = trace.packets.length - 1;
    const keys = {
      ArrowRight: () => pick(picked === null ? 0 : Math.min(picked + 1, last)),
      ArrowLeft: () => pick(picked === null ? 0 : Math.max(picked - 1, 0)),
      "+": () => zoom(0.5), "-": () => zoom(2), Home: () => move(trace.from, trace.to),
    };
    if (keys[event.key] && last >= 0) {
      event.preventDefault();
      keys[event.key]();
    }
  });

  const followTrace = async () => {
    const it = shown.trace;
    if (it.state === "running") set(byId("trace-state"), `The run is repeated from 0 to see the packets of this message: ${time(it.at_ns)}`);
    if (it.state === "failed") set(byId("trace-state"), it.why);
    if (it.state === "none" && trace) {
      trace = null;
      traceNumber = 0;
      byId("trace").hidden = true;
      set(byId("trace-state"), "");
    }
    if (it.state !== "done" || it.number === traceNumber) return;
    traceNumber = it.number;
    const response = await fetch("trace.json");
    if (!response.ok) return;
    trace = await response.json();
    set(byId("trace-state"), "");
    showTrace();
  };

  // ---- All -----------------------------------------------------------------------------------------------------------------------

  const MODES = { running: "running", paused: "waits", over: "ended" };
  const showMode = () => {
    const isLost = connection === "lost";
    const mode = isLost ? "lost" : shown ? shown.mode : "connecting";
    setClass(byId("mode"), `pill ${mode}`);
    set(byId("mode"), isLost ? "no connection: has the command been ended?" : MODES[mode] || mode);
    if (!shown) return;
    set(byId("clock"), time(present()));
    const isOver = shown.mode === "over";
    for (const id of ["run", "step", "stop", "film"]) byId(id).disabled = isOver;
    byId("pause").disabled = shown.mode !== "running";
    byId("run").disabled = isOver || (shown.mode === "running" && shown.target_ns === null);
    document.title = `${session ? session.lanes[0].name : ""} ${time(present())} · Rackweave explore`;
  };

  const news = async (event) => {
    const next = JSON.parse(event.data);
    connection = "live";
    if (!session || session.generation !== next.generation) {
      const response = await fetch("session.json");
      session = await response.json();
      if (session.generation !== next.generation) return;
      lanes = session.lanes.map((described, number) => addLane(number, described));
      byId("main").hidden = false;
      byId("lanes").replaceChildren(...lanes.map((lane) => lane.root));
      setClass(byId("lanes"), lanes.length > 1 ? "two" : "");
      showSettings();
    }
    shown = next;
    next.lanes.forEach((lane, number) => showLane(lanes[number], lane));
    showMode();
    followTrace();
    if (next.mode !== "running") {
      const ready = waiters;
      waiters = [];
      ready.forEach((done) => done());
    }
  };

  const redraw = () => {
    readLook();
    for (const lane of lanes) {
      if (!lane.picture) continue;
      const { layout } = lane.described;
      lane.segments = drawFabric(lane.canvas, layout, lane.picture, heightOf(layout));
      drawGoodput(lane.chart, lane.picture);
    }
    if (trace) drawTrace();
  };

  let queue = Promise.resolve();
  const connect = () => {
    const source = new EventSource("events");
    source.addEventListener("message", (event) => {
      queue = queue.then(() => news(event)).catch((error) => say(String(error)));
    });
    source.addEventListener("error", () => {
      connection = "lost";
      showMode();
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
    });
  };

  window.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  readLook();
  connect();
})();
