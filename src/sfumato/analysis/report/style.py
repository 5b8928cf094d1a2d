"""The style sheet: one column, readable on a phone, printable, light and dark."""

CSS = """
:root { --paper: #fbf8f3; --card: #ffffff; --ink: #2b2622; --soft: #6d645c; --line: #e3dbd0; --accent: #8a4b2d;
  --wash: #8a4b2d1f; --fill: #8a4b2d40; --good: #2f6b3c; --fair: #8a6100; --bad: #a8261c;
  --c0: #2f6f9f; --c1: #c2702a; --c2: #3f8a5c; --c3: #9b4f96; --c4: #8a7a22; --c5: #5a6572; }
@media (prefers-color-scheme: dark) { :root { --paper: #191614; --card: #221e1b; --ink: #ece5dc; --soft: #a89d92;
  --line: #3a332d; --accent: #e0a27f; --wash: #e0a27f1f; --fill: #e0a27f40; --good: #8ccf9b; --fair: #e6c05c;
  --bad: #ff8f83;  --c0: #79b8e6; --c1: #f0a566; --c2: #82cf9f; --c3: #d592d0; --c4: #d3c25f; --c5: #a3b0be; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 17px/1.6 Charter, "Bitstream Charter",
  "Iowan Old Style", Georgia, "Times New Roman", serif; }
main { max-width: 54rem; margin: 0 auto; padding: 2.5rem 1.25rem 3rem; }
h1, h2 { font-weight: 500; line-height: 1.2; letter-spacing: -.01em; }
h1 { font-size: clamp(1.9rem, 6vw, 2.7rem); margin: 0 0 1.2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.5rem; margin: 3rem 0 .8rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .3rem; }
p { margin: .6rem 0; max-width: 44rem; }
.brand { color: var(--accent); font-style: italic; margin: 0 0 .4rem; }
.small { font-size: .86rem; color: var(--soft); line-height: 1.5; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(7rem, 1fr)); gap: 1px; margin: 0;
  background: var(--line); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
.facts div { background: var(--card); padding: .6rem .9rem; }
.facts dt, th, figcaption, .list dt { font: 500 .78rem/1.4 system-ui, sans-serif; color: var(--soft); }
.facts dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
.promise { border-left: 3px solid var(--accent); background: var(--card); padding: .4rem 1.2rem;
  border-radius: 0 8px 8px 0;  font-size: 1.08rem; }
.verdict { border: 2px solid currentColor; border-radius: 8px; padding: .2rem 1.2rem .6rem; margin: 1.6rem 0;
  background: var(--card); font-weight: 400; }
.verdict h2 { margin: .8rem 0 .2rem; } .verdict p { color: var(--ink); }
.verdict.bad h2 { font-weight: 700; } .greyed { opacity: .45; }
.note { border-left: 3px solid currentColor; padding-left: .8rem; }
.good { color: var(--good); } .fair { color: var(--fair); } .bad { color: var(--bad); font-weight: 600; }
.scroll { overflow-x: auto; margin: 1rem 0 .4rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .4rem .7rem; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr));
  gap: 1rem; margin-top: 1rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .7rem .3rem;  break-inside: avoid; min-width: 0; }
figure.wide { max-width: 33rem; margin: 1rem 0; }
figcaption { color: var(--ink); overflow-wrap: anywhere; }
.wide figcaption { color: var(--soft); text-align: center; padding-bottom: .3rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg polyline { fill: none; stroke-linejoin: round; }
.main { stroke: var(--accent); stroke-width: 1.8; } .thin { stroke-width: .9; opacity: .75; }
.wash { fill: var(--wash); } .fill { fill: var(--fill); }
.mean { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 2 3; }
.axis { stroke: var(--soft); } svg .grid { stroke: var(--line); }
line.cap { stroke: var(--bad); stroke-dasharray: 5 4; } svg text.cap { fill: var(--bad); }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); }
.c3 { stroke: var(--c3); } .c4 { stroke: var(--c4); } .c5 { stroke: var(--c5); }
.list { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.1rem;
  margin: 1rem 0; align-items: baseline; }
.list dd { margin: 0; min-width: 0; }
ul { padding-left: 1.2rem; } li { margin: .3rem 0; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); }
@media (max-width: 34rem) { body { font-size: 16px; } main { padding-top: 1.5rem; } h2 { margin-top: 2.2rem; }
  th, td { padding: .4rem .5rem; } }
@media print { :root { --paper: #fff; --card: #fff; } body { font-size: 10.5pt; } main { max-width: none; padding: 0; }
  h2 { break-after: avoid; } .scroll { overflow: visible; } }
"""
