"use strict";
// The owner's console: asks the node once a second, draws what it says. Text goes in as text, never as markup.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let token = sessionStorage.getItem("sfumato-token") || "";
let state = null;
let timer = 0;
let planned = 0;
let heard = null; // when the node last answered

async function call(path, body) {
  const options = { headers: { Authorization: `Bearer ${token}` }, cache: "no-store", credentials: "omit" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const said = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(said.error || "The node refused."), { code: said.code });
  return said;
}

// -- drawing ------------------------------------------------------------------------------------------------------

const number = (value, digits = 3) => {
  if (value === 0) return "0";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return Math.abs(value) < 0.001 ? value.toExponential(1) : Number(value.toPrecision(digits)).toString();
};
// What is still possible is never rounded up: a run that asks for it must be granted.
const atMost = (value) => (value < 0.01 ? value : Math.floor(value * 100) / 100).toString();
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const LOCAL = { dateStyle: "medium", timeStyle: "short" };
const TODAY = { timeStyle: "medium" };

// Local time; the exact one, in UTC, is in the element.
function when(text, options) {
  if (!text) return "";
  const made = document.createElement("time");
  made.dateTime = text;
  made.title = text;
  made.textContent = local(new Date(text), options);
  return made;
}

function local(date, options) {
  const today = date.toDateString() === new Date().toDateString();
  return date.toLocaleString("en-GB", options || (today ? TODAY : LOCAL));
}

function shape(name, facts, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(facts)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function cell(content, kind) {
  const made = document.createElement("td");
  made.setAttribute("role", "cell");
  if (kind) made.className = kind;
  if (content instanceof Node) made.append(content);
  else made.textContent = content;
  return made;
}

// Lines of a table; each cell carries its heading, which a phone shows beside it.
function rows(id, lines, empty) {
  const body = $(id);
  const heads = [...body.parentElement.querySelectorAll("thead th")].map((head) => head.textContent);
  const kept = document.activeElement && body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const made = lines.map((cells) => {
    const line = document.createElement("tr");
    line.setAttribute("role", "row");
    cells.forEach((part, i) => { part.dataset.label = heads[i]; });
    line.append(heading(cells[0]), ...cells.slice(1));
    return line;
  });
  if (!lines.length) {
    const line = document.createElement("tr");
    line.setAttribute("role", "row");
    const only = cell(empty, "none");
    only.colSpan = heads.length;
    line.append(only);
    made.push(line);
  }
  body.replaceChildren(...made);
  if (kept) for (const button of body.querySelectorAll("button")) if (button.dataset.key === kept) button.focus();
}

function heading(from) {
  const made = document.createElement("th");
  made.scope = "row";
  made.setAttribute("role", "rowheader");
  made.append(...from.childNodes);
  return made;
}

function spent(amount) {
  const span = document.createElement("span");
  if (!amount) {
    span.textContent = "–";
    return span;
  }
  const meter = document.createElement("meter");
  meter.max = 1;
  meter.value = amount.cap ? amount.spent / amount.cap : 0;
  meter.setAttribute("aria-hidden", "true");
  span.append(meter, percent(meter.value));
  span.title = `μ² ${number(amount.spent)} of ${number(amount.cap)}`;
  return span;
}

function drawGauge(budget) {
  const left = Math.max(0, 1 - budget.spent / budget.cap);
  $("gauge").setAttribute("stroke-dasharray", `${100 * left} 100`);
  $("gauge").style.strokeDasharray = `${100 * left} 100`;
  $("gauge").style.visibility = left < 0.004 ? "hidden" : "visible";
  $("gauge").classList.toggle("few", left < 0.1);
  $("left-share").textContent = percent(left);
  $("gauge-text").textContent =
    `μ² ${number(budget.cap - budget.spent, 4)} left of ${number(budget.cap, 4)}, the cap of ε = ${number(budget.epsilon)}, ` +
    `δ = ${budget.delta.toExponential(0)}. Open reservations count as spent.`;
  $("gauge").dataset.left = budget.cap - budget.spent;
}

function drawCurve(budget, curve) {
  const svg = $("curve");
  const points = curve.length ? curve : [[state.now, 0]];
  const first = points[0][0];
  const span = Math.max(state.now - first, 1);
  const top = budget.cap;
  const x = (at) => 4 + (312 * (at - first)) / span;
  const y = (value) => 116 - (100 * value) / top;
  const path = [`${x(first)},${y(0)}`];
  let before = 0;
  for (const [at, value] of points) {
    path.push(`${x(at)},${y(before)}`, `${x(at)},${y(value)}`);
    before = value;
  }
  path.push(`${x(state.now)},${y(before)}`);
  svg.replaceChildren(
    shape("line", { x1: 4, x2: 316, y1: 116, y2: 116 }),
    shape("line", { x1: 4, x2: 316, y1: y(top), y2: y(top), class: "limit" }),
    shape("polyline", { points: [...path, `${x(state.now)},116`, `${x(first)},116`].join(" "), class: "area" }),
    shape("polyline", { points: path.join(" ") }),
    shape("text", { x: 4, y: 12 }, "cap"),
    shape("text", { x: 4, y: 129 }, curve.length ? local(new Date(first * 1000), LOCAL) : ""),
    shape("text", { x: 316, y: 129, class: "end" }, "now"),
  );
  $("curve-text").textContent = `μ² ${number(before, 4)} spent by ${state.analysts} analyst${state.analysts === 1 ? "" : "s"} in ${state.answers.toLocaleString("en")} answers.`;
}

function drawRates(rates) {
  const most = Math.max(...rates);
  const top = Math.max(most, 1);
  $("rates").replaceChildren(
    shape("line", { x1: 0, x2: 320, y1: 69, y2: 69 }),
    ...rates.map((rate, i) => shape("rect", { x: (320 * i) / rates.length, width: 320 / rates.length - 1, y: 69 - (66 * rate) / top, height: (66 * rate) / top })),
  );
  $("rate").textContent = number(rates[rates.length - 1]);
  $("rate-text").textContent = `The last sixty seconds; at most ${number(most)} a second. ${state.connections} connection${state.connections === 1 ? "" : "s"} open.`;
}

function shortRun(run) {
  if (run.startsWith("estimate-")) return `estimate ${run.slice(9, 17)}`;
  return /^[0-9a-f]{16}$/.test(run) ? run.slice(0, 8) : run; // made up by a machine, or a name that somebody gave
}

// How a run stands, since when, and what else is known of it.
function standing(run) {
  const span = document.createElement("span");
  span.append(!run.since ? run.state : run.state === "disconnected" ? "disconnected since " : `${run.state}, `);
  if (run.since) span.append(when(run.since));
  for (const mark of run.marks) {
    const pill = document.createElement("span");
    pill.className = "mark";
    pill.textContent = mark;
    span.append(pill);
  }
  return span;
}

function studies() {
  return state.studies.flatMap((study) => {
    const cap = `ε ${number(study.epsilon)} at δ ${study.delta.toExponential(0)}`;
    const each = study.possible.length ? study.possible : [{ analyst: "nobody yet", epsilon: study.epsilon, delta: study.delta }];
    return each.map((part) => [
      cell(study.name), cell(study.n.toLocaleString("en")), cell(cap), cell(part.analyst),
      cell(part.epsilon > 0 ? `${atMost(part.epsilon)} at δ ${part.delta.toExponential(0)}` : "none left", part.epsilon > 0 ? "" : "bad"),
    ]);
  });
}

function banner(words, lost) {
  $("banner").hidden = !words;
  $("banner").classList.toggle("lost", Boolean(lost));
  if ($("banner").textContent !== words) $("banner").textContent = words;
}

function draw() {
  $("name").textContent = state.name;
  document.title = `${state.paused ? "Paused: " : ""}${state.name} · sfumato node`;
  $("state").textContent = state.paused ? "paused" : "serving";
  $("state").className = state.paused ? "pill paused" : "pill";
  banner(state.paused ? "This node is paused: nobody gets an answer, also after a restart, until answers are resumed here." : "");
  $("pause").textContent = state.paused ? "Resume answers" : "Pause answers";
  $("version").textContent = `sfumato ${state.version}; ledger head ${state.head.slice(0, 18)}…`;
  drawGauge(state.budget);
  drawCurve(state.budget, state.curve);
  drawRates(state.rates);
  rows("runs", state.runs.map((run) => [
    cell(run.study), cell(run.analyst), cell(shortRun(run.run)), cell(when(run.opened)), cell(`ε ${number(run.epsilon)}`, "short"),
    cell(run.answers.toLocaleString("en")), cell(spent(run.budget), "short"), cell(standing(run), run.state === "connected" ? "good" : ""),
  ]), "No run has been opened yet.");
  rows("studies", studies(), "No study is approved.");
  rows("tokens", state.tokens.map((line) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Revoke";
    button.dataset.key = line.name;
    button.setAttribute("aria-label", `Revoke ${line.name}`);
    button.addEventListener("click", () => revoke(line.name));
    const may = line.state === "valid" && !line.self;
    return [
      cell(line.name), cell(line.kind), cell(line.expires ? when(line.expires) : "never"), cell(spent(line.budget), "short"),
      cell(line.state, line.state === "valid" ? "good" : "bad"), cell(may ? button : "", may ? "" : "blank"),
    ];
  }), "No tokens.");
  $("statement").textContent = state.statement;
  showConsortium(state.consortium);
  rows("log", state.log.map((line) => [
    cell(when(line.at)), cell(line.who || "–"), cell(line.words), cell(line.what || "", line.what ? "" : "blank"),
  ]), "Nothing yet.");
  if (!$("study").options.length) startPlanner();
}

// -- asking -------------------------------------------------------------------------------------------------------

async function refresh() {
  window.clearTimeout(timer);
  try {
    state = await call("api/console/state");
    $("trouble").textContent = "";
    heard = new Date();
    $("main").classList.remove("dead");
    show(true);
    draw();
  } catch (error) {
    if (["unauthorised", "forbidden", "revoked"].includes(error.code)) return signOut(error.message);
    lost();
  }
  timer = window.setTimeout(refresh, 1000);
}

// The node is gone: what is on the page is from when it last answered, and says so.
function lost() {
  $("state").textContent = "no answer";
  $("state").className = "pill lost";
  $("main").classList.add("dead");
  banner(heard ? `The node has not answered since ${local(heard, TODAY)}. Everything below is from then.` : "The node does not answer.", true);
}

function show(open) {
  $("login").hidden = open;
  $("console").hidden = !open;
  $("bar").hidden = !open;
}

function signOut(words) {
  token = "";
  state = null;
  sessionStorage.removeItem("sfumato-token");
  window.clearTimeout(timer);
  $("study").replaceChildren();
  show(false);
  $("wrong").textContent = words || "";
  $("token").focus();
}

async function act(path, body) {
  try {
    await call(path, body);
    await refresh();
  } catch (error) {
    $("trouble").textContent = error.message;
  }
}

function revoke(name) {
  $("ask-text").textContent = `Revoke the token of ${name}? Its connections are closed at once and it cannot be given back.`;
  $("ask").returnValue = "no";
  $("ask").onclose = () => { if ($("ask").returnValue === "yes") act("api/console/revoke", { name }); };
  $("ask").showModal();
}

// -- the planner --------------------------------------------------------------------------------------------------

const EXPONENTS = { epsilon: 2, delta: 1, records: 3 };
const POINTS = 9; // of the curve
const exact = {}; // what the study itself has, until a slider is moved: its steps are coarse
const slid = (id) => exact[id] ?? Number(Math.pow(10, Number($(id).value)).toPrecision(EXPONENTS[id]));
const chosen = () => state.studies.find((study) => study.name === $("study").value) || state.studies[0];

function startPlanner() {
  $("study").replaceChildren(...state.studies.map((study) => new Option(study.name, study.name)));
  startStudy();
}

// A study begins at its own cap: the most that a run may ask for.
function startStudy() {
  const study = chosen();
  $("epsilon").value = Math.log10(study.epsilon);
  $("delta").value = Math.log10(study.delta);
  $("records").value = Math.log10(study.n);
  Object.assign(exact, { epsilon: study.epsilon, delta: study.delta, records: study.n });
  replan();
}

// Caps on the slider: of the study, and what the best placed analyst may still ask for.
function caps() {
  const study = chosen();
  const most = Math.max(0, ...study.possible.map((part) => part.epsilon));
  const found = [{ epsilon: study.epsilon, words: `cap ${number(study.epsilon)}` }];
  if (!study.possible.length || most <= 0 || most > 0.999 * study.epsilon) return found;
  const left = `left ${atMost(most)}`;
  if (most > 0.6 * study.epsilon) return [{ epsilon: most, words: `${left} of ${number(study.epsilon)}` }]; // side by side they would overlap
  return [...found, { epsilon: most, words: left }];
}

function drawMarks() {
  const [low, high] = [Number($("epsilon").min), Number($("epsilon").max)];
  $("epsilon-marks").replaceChildren(...caps().map((cap) => {
    const made = document.createElement("span");
    made.textContent = cap.words;
    made.style.left = `${(100 * (Math.min(Math.max(Math.log10(cap.epsilon), low), high) - low)) / (high - low)}%`;
    return made;
  }));
}

function labels() {
  $("epsilon-out").textContent = number(slid("epsilon"));
  $("delta-out").textContent = slid("delta").toExponential(0);
  $("records-out").textContent = Math.round(slid("records")).toLocaleString("en");
}

function fact(label, value, kind) {
  const box = document.createElement("div");
  const term = document.createElement("dt");
  const said = document.createElement("dd");
  term.textContent = label;
  said.textContent = value;
  if (kind) said.className = kind;
  box.append(term, said);
  return box;
}

function showConsortium(house) {
  $("consortium").hidden = !house;
  if (!house) return;
  const others = house.members.length - 1;
  $("consortium-text").textContent =
    `${house.name}: sums are sealed; ${house.colluders} of the ${others} others are assumed to work with an analyst. Against all of them `
    + `μ² ${number(house.everybody.spent, 4)} of ${number(house.everybody.cap, 4)} is spent. Compare fingerprints by telephone.`;
  $("roster").replaceChildren(...house.members.map((one) => fact(one.self ? `${one.name} (you)` : one.name, one.fingerprint)));
}

const ask = (epsilon) => ({ study: chosen().name, epsilon, delta: slid("delta"), n: Math.round(slid("records")) });

async function replan() {
  labels();
  drawMarks();
  const turn = ++planned;
  $("forecast").classList.add("stale");
  await new Promise((done) => window.setTimeout(done, 120));
  if (turn !== planned) return;
  try {
    const plan = (await call("api/console/plan", ask(slid("epsilon")))).plan;
    if (turn !== planned) return;
    $("forecast").replaceChildren(
      fact("Iterations", `${plan.chains} × ${plan.iterations.toLocaleString("en")}`),
      fact("Effective draws", number(plan.forecast_ess), plan.weak ? "bad" : "good"),
      fact("Of the one-shot limit", percent(plan.share_of_limit)),
      fact("Kernel", plan.kernel),
      fact("Noise σ", number(plan.sigma)),
      fact("μ of the cap", number(plan.mu, 4)),
    );
    $("forecast").dataset.ess = plan.forecast_ess;
    $("verdict").textContent = `${plan.remedy ? `Too weak: ${plan.remedy} ` : plan.weak ? "Weak, if the parameters are near there; a pilot will tell. " : ""}Rests on: ${plan.assumptions.join("; ")}.`;
    $("forecast").classList.remove("stale");
    await drawWorth(turn, [slid("epsilon"), plan.forecast_ess]);
  } catch (error) {
    if (turn !== planned) return;
    $("forecast").replaceChildren(fact("No plan", "–"));
    $("verdict").textContent = error.message;
  }
  $("forecast").classList.remove("stale");
}

// Effective draws against epsilon, point by point, each a plan of its own; on logarithmic axes.
async function drawWorth(turn, here) {
  const [low, high] = [Number($("epsilon").min), Number($("epsilon").max)];
  const points = [here];
  for (let i = 0; i < POINTS; i += 1) {
    const epsilon = Number(Math.pow(10, low + ((high - low) * i) / (POINTS - 1)).toPrecision(2));
    const plan = (await call("api/console/plan", ask(epsilon))).plan;
    if (turn !== planned) return;
    if (plan.forecast_ess > 0) points.push([epsilon, plan.forecast_ess]);
    points.sort((a, b) => a[0] - b[0]);
    worth(points, here, low, high);
  }
  $("worth").dataset.points = points.length;
}

function worth(points, here, low, high) {
  const bottom = Math.floor(Math.min(0, ...points.map((point) => Math.log10(point[1]))));
  const top = Math.ceil(Math.max(2, ...points.map((point) => Math.log10(point[1]))));
  const x = (epsilon) => 54 + (356 * (Math.log10(epsilon) - low)) / (high - low);
  const y = (draws) => 160 - (148 * (Math.log10(draws) - bottom)) / (top - bottom);
  const marks = [];
  for (let power = bottom; power <= top; power += 1) {
    marks.push(shape("line", { x1: 54, x2: 410, y1: y(10 ** power), y2: y(10 ** power) }));
    marks.push(shape("text", { x: 48, y: y(10 ** power) + 4, class: "end" }, (10 ** power).toLocaleString("en")));
  }
  for (const epsilon of [0.1, 1, 10]) marks.push(shape("text", { x: x(epsilon), y: 178, class: epsilon === 10 ? "end" : "mid" }, `ε ${epsilon}`));
  for (const cap of caps()) marks.push(shape("line", { x1: x(cap.epsilon), x2: x(cap.epsilon), y1: 12, y2: 160, class: "limit" }));
  marks.push(shape("polyline", { points: points.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }));
  marks.push(shape("circle", { cx: x(here[0]), cy: y(here[1]), r: 4.5 }));
  $("worth").replaceChildren(...marks);
  $("worth-text").textContent = "Effective draws against ε, on logarithmic axes; the dot is where the slider stands, dashed lines are caps. A run needs 20 at the least.";
}

// -- wiring -------------------------------------------------------------------------------------------------------

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  $("token").value = "";
  sessionStorage.setItem("sfumato-token", token);
  $("wrong").textContent = "";
  refresh();
});
$("pause").addEventListener("click", () => act(state && state.paused ? "api/console/resume" : "api/console/pause", {}));
$("leave").addEventListener("click", () => signOut(""));
$("planner").addEventListener("submit", (event) => event.preventDefault());
$("study").addEventListener("input", startStudy);
for (const id of ["epsilon", "delta", "records"]) {
  $(id).addEventListener("input", () => { delete exact[id]; replan(); });
}
$("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText($("statement").textContent).then(
    () => { $("copied").textContent = "Copied."; }, () => { $("copied").textContent = "The browser does not allow it; select the text instead."; });
});
if (token) refresh(); else show(false);
