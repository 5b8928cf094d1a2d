"""The style sheet: one column, readable on a phone, printable, light and dark."""

CSS = """
:root { --paper: #fbf8f3; --card: #ffffff; --ink: #2b2622; --soft: #655c54; --line: #e3dbd0; --accent: #8a4b2d;
  --wash: #8a4b2d1f; --fill: #8a4b2d40; --prior: #e6d9c6; --good: #2f6b3c; --fair: #805a00; --bad: #a8261c; --alarm: #fdecea;
  --c0: #2f6f9f; --c1: #c2702a; --c2: #3f8a5c; --c3: #9b4f96; --c4: #8a7a22; --c5: #5a6572; }
@media (prefers-color-scheme: dark) { :root { --paper: #191614; --card: #221e1b; --ink: #ece5dc; --soft: #b0a69b;
  --line: #3a332d; --accent: #e0a27f; --wash: #e0a27f1f; --fill: #e0a27f40; --prior: #463b31; --good: #8ccf9b; --fair: #e6c05c;
  --bad: #ff8f83; --alarm: #3a1d1a; --c0: #79b8e6; --c1: #f0a566; --c2: #82cf9f; --c3: #d592d0; --c4: #d3c25f; --c5: #a3b0be; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 58rem; padding: 1.6rem 1.25rem 3rem; background: var(--paper); color: var(--ink);
  font: 17px/1.6 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, "Times New Roman", serif; }
h1, h2, h3, h4 { line-height: 1.25; }
h1, h2 { font-weight: 500; letter-spacing: -.01em; }
h1 { font-size: clamp(1.7rem, 5vw, 2.5rem); margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.5rem; margin: 2.8rem 0 .8rem; }
h3 { font-size: 1.08rem; margin: 1.8rem 0 .4rem; }
h4 { font: 600 .86rem/1.4 system-ui, sans-serif; margin: 0 0 .2rem; overflow-wrap: anywhere; }
p { margin: .6rem 0; max-width: 46rem; }
a { color: var(--accent); }
.brand { color: var(--accent); font-style: italic; margin: 0 0 .3rem; }
.small { font-size: .86rem; color: var(--soft); line-height: 1.5; }
.lead { font-size: clamp(1.15rem, 3vw, 1.4rem); line-height: 1.45; margin: .8rem 0; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; margin: 0; padding: .4rem 0;
  border-top: 1px solid var(--line);
  border-bottom: 1px solid var(--line); font: .86rem/1.6 system-ui, sans-serif; }
nav li { margin: 0; } nav a { display: inline-block; padding: .2rem 0; text-decoration: none; }
  nav a:hover { text-decoration: underline; }
.verdict { margin: .8rem 0 1.2rem; } .verdict.good strong { color: var(--good); } .verdict.fair strong { color: var(--fair); }
.verdict.bad { background: var(--alarm); border: 2px solid var(--bad); border-radius: 8px; padding: .4rem 1.2rem .6rem; }
.verdict.bad h3 { color: var(--bad); margin: .6rem 0 .2rem; font-size: 1.35rem; }
.forest { font: .92rem/1.4 system-ui, sans-serif; margin: 1.2rem 0 .4rem; }
.row, .axis { display: grid; grid-template-columns: minmax(6rem, 14rem) minmax(8rem, 1fr) 12.5rem; gap: 0 1rem;
  align-items: center; }
.row { padding: .15rem 0; break-inside: avoid; } .name { overflow-wrap: anywhere; } .name small { color: var(--soft);
  white-space: nowrap; }
.value { text-align: right; font-variant-numeric: tabular-nums; } .value span { color: var(--soft); }
.strip { position: relative; height: 1.7rem; background: var(--card); border-radius: 4px; overflow: hidden;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.strip i { position: absolute; display: block; } .strip b { position: absolute; top: .05rem; font-weight: 400;
  color: var(--soft); }
.strip .left { left: .2rem; } .strip .right { right: .2rem; }
.prior { top: .25rem; bottom: .25rem; background: var(--prior); border-radius: 3px; }
.bar { top: .68rem; height: .34rem; background: var(--accent); border-radius: 2px; }
.dot { top: .55rem; width: .6rem; height: .6rem; margin-left: -.3rem; border-radius: 50%; background: var(--accent);
  border: 1px solid var(--card); }
.zero { top: 0; bottom: 0; width: 0; border-left: 1px dashed var(--soft); }
.axis { color: var(--soft); font-size: .78rem; margin-bottom: .8rem; } .axis div { position: relative; height: 1.2rem; }
.axis div span { position: absolute; transform: translateX(-50%); white-space: nowrap; font-variant-numeric: tabular-nums; }
.axis > span:last-child { text-align: right; }
.glance { display: grid; grid-template-columns: repeat(auto-fit, minmax(7rem, 1fr)); gap: 1px; margin: 1.2rem 0 0;
  background: var(--line); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
.glance div { background: var(--card); padding: .4rem .9rem; }
.glance dt, thead th, figcaption, .list dt { font: 500 .78rem/1.4 system-ui, sans-serif; color: var(--soft); }
@media (max-width: 40rem) { .glance { grid-template-columns: 1fr 1fr; } }
.glance dd { margin: 0; font-size: 1.1rem; font-variant-numeric: tabular-nums; }
.promise { border-left: 3px solid var(--accent); background: var(--card); padding: .4rem 1.2rem; border-radius: 0 8px 8px 0;
  font-size: 1.05rem; }
.good { color: var(--good); } .fair { color: var(--fair); } .bad { color: var(--bad); }
  p.good, p.fair, div.bad p { color: var(--ink); }
td .bad { font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin: .8rem 0 .4rem; font-size: .95rem; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody th { font-weight: 400; overflow-wrap: anywhere; }
th:first-child { text-align: left; padding-left: 0; } th:last-child, td:last-child { padding-right: 0; }
.words th, .words td { text-align: left; overflow-wrap: anywhere; }
.card { margin: 1rem 0; break-inside: avoid; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: .8rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .5rem .6rem .3rem;
  break-inside: avoid; min-width: 0; }
figure.wide { max-width: 33rem; margin: 1rem 0; }
figcaption { overflow-wrap: anywhere; text-align: center; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg polyline { fill: none; stroke-linejoin: round; }
.main { stroke: var(--accent); stroke-width: 1.8; } .thin { stroke-width: 1; opacity: .8; }
.wash { fill: var(--wash); } .fill { fill: var(--fill); }
.mean { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 2 3; }
line.axis { stroke: var(--soft); } svg .grid { stroke: var(--line); }
line.cap { stroke: var(--bad); stroke-dasharray: 5 4; } svg text.cap { fill: var(--bad); }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); }
.c3 { stroke: var(--c3); } .c4 { stroke: var(--c4); } .c5 { stroke: var(--c5); }
.list { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .35rem 1.1rem; margin: .8rem 0;
  align-items: baseline; }
.list dt { max-width: 11rem; } .list dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .7rem .9rem; font-size: .8rem;
  line-height: 1.5;
  white-space: pre-wrap; overflow-wrap: anywhere; }
details { border-top: 1px solid var(--line); padding: .5rem 0; } summary { cursor: pointer; color: var(--accent); }
details[open] > summary { margin-bottom: .4rem; }
ul { padding-left: 1.2rem; } li { margin: .3rem 0; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.hide { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; white-space: nowrap; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; top: .3rem; background: var(--paper);
  padding: .2rem .6rem; }
@media (max-width: 40rem) { body { font-size: 16px; padding: 1rem 1rem 2rem; } h2 { margin-top: 2.2rem; }
  .row { grid-template-columns: 1fr max-content; gap: .1rem .6rem; padding: .35rem 0; } .strip { grid-column: 1 / -1;
  grid-row: 2; }
  .axis { grid-template-columns: 1fr; } .axis > span { display: none; }
  .value { max-width: 60vw; } .list { grid-template-columns: 1fr; gap: 0; } .list dt { margin-top: .5rem; max-width: none; }
  thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  table, tbody, tr, tbody th, td { display: block; text-align: left; }
  tr { border: 1px solid var(--line); border-radius: 8px; background: var(--card); padding: .4rem .8rem; margin: .5rem 0; }
  tbody th { font-weight: 600; border: 0; padding: .1rem 0; }
  td, td:last-child { border: 0; padding: .1rem 0; display: flex; justify-content: space-between; gap: 1rem; text-align: right; }
  .words td { text-align: right; } td:empty { display: none; }
  td::before { content: attr(data-label); color: var(--soft); font: 500 .8rem/1.9 system-ui, sans-serif; text-align: left; } }
@media print { :root { --paper: #fff; --card: #fff; } body { font-size: 10.5pt; max-width: none; padding: 0; }
  nav, .skip { display: none; } h2, h3, h4, summary { break-after: avoid; } tr, dt { break-inside: avoid; } p { orphans: 3;
  widows: 3; }
  details:not([open])::details-content { content-visibility: visible; block-size: auto; } }
"""
