"""The style sheet of a report: light or dark as the reader's system is, one column, its fonts."""

from typing import Final

STYLE: Final = """
:root { --ok: #1f8a70; --info: #d98e04; --fail: #c5283d; --poll: #3b6fb6; --ink: #1d2430;
  --soft: #5d6778; --line: #e3e7ee; --page: #f5f6f9; --card: #fff; --fault: #7b5ea7;
  --axis: #98a2b3; --unsure: #9a6400; --p50: #0b5345; --p95: #6b4fa0; --p99: #222; }
@media screen and (prefers-color-scheme: dark) { :root { color-scheme: dark; --ok: #35b595;
  --info: #e8a33a; --fail: #f0616d; --poll: #6fa3e8; --ink: #e6e9ef; --soft: #a3adbd;
  --line: #333b49; --page: #12161d; --card: #1b212b; --fault: #b79be6; --axis: #6b7688;
  --unsure: #e8a33a; --p50: #8fe3cd; --p95: #c3a8f5; --p99: #f2f2f2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1140px; margin: 0 auto; padding: 24px 16px 48px; }
header, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 18px 24px; margin-bottom: 16px; }
header { border-left: 8px solid; }
header.valid { border-left-color: var(--ok); } header.valid h1 { color: var(--ok); }
header.invalid { border-left-color: var(--fail); } header.invalid h1 { color: var(--fail); }
header.unknown { border-left-color: var(--info); } header.unknown h1 { color: var(--unsure); }
header ul { margin: 6px 0; padding-left: 20px; }
h1 { margin: 0; font-size: 34px; line-height: 1.2; }
h2 { margin: 0 0 12px; font-size: 18px; }
h3 { margin: 14px 0 6px; font-size: 14px; }
p { margin: 4px 0; }
.run { color: var(--soft); font-size: 13px; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr)); gap: 10px;
  margin-bottom: 14px; }
.figures div { border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; }
.figures b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.figures span { color: var(--soft); font-size: 12.5px; }
.wide { overflow-x: auto; } .wide table { min-width: 760px; }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
details { border: 1px solid var(--line); border-left: 4px solid var(--fail); border-radius: 6px;
  padding: 8px 14px; margin-bottom: 8px; }
details.unknown { border-left-color: var(--info); }
details.allowed { border-left-color: var(--line); }
summary { cursor: pointer; }
summary em { font-style: normal; color: #fff; background: var(--fail); border-radius: 10px;
  padding: 0 8px; font-size: 13px; margin: 0 4px; }
details.unknown em { background: var(--info); } details.allowed em { background: var(--soft); }
details p { color: var(--soft); font-size: 13px; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit; }
.tick { font-size: 11.5px; fill: var(--soft); }
.fault { font-size: 11.5px; fill: var(--fault); }
.grid { stroke: var(--line); } .axis { stroke: var(--axis); }
.band { fill: var(--fault); fill-opacity: .13; }
.line { fill: none; stroke-width: 1.7; stroke-linejoin: round; }
.line.p50 { stroke: var(--p50); } .line.p95 { stroke: var(--p95); }
.line.p99 { stroke: var(--p99); }
.line.ok { stroke: var(--ok); } .line.info { stroke: var(--info); }
.line.fail { stroke: var(--fail); } .line.polled { stroke: var(--poll); stroke-dasharray: 5 3; }
.dots { stroke-linecap: round; fill: none; }
.dots.ok { stroke: var(--ok); stroke-opacity: .3; }
.dots.info { stroke: var(--info); } .dots.fail { stroke: var(--fail); }
.dots.send { stroke: var(--ok); } .dots.poll { stroke: var(--poll); stroke-opacity: .6; }
.dots.final { stroke: #9aa7bb; }
.mark.fail { fill: var(--fail); fill-opacity: .8; stroke: var(--card); }
.cell.send { fill: var(--ok); fill-opacity: .75; }
.cell.poll { fill: var(--poll); fill-opacity: .55; }
.cell.other { fill: #9aa7bb; } .cell.info { fill: var(--info); } .cell.fail { fill: var(--fail); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; color: var(--soft); font-size: 12.5px;
  margin: 4px 0 0 64px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px;
  background: #9aa7bb; vertical-align: -1px; }
.legend .ok, .legend .send { background: var(--ok); }
.legend .info { background: var(--info); } .legend .fail { background: var(--fail); }
.legend .poll, .legend .polled { background: var(--poll); }
.legend .other, .legend .final { background: #9aa7bb; }
.legend .p50 { background: var(--p50); height: 3px; vertical-align: 3px; }
.legend .p95 { background: var(--p95); height: 3px; vertical-align: 3px; }
.legend .p99 { background: var(--p99); height: 3px; vertical-align: 3px; }
.legend .band { background: var(--fault); opacity: .25; }
@media (max-width: 640px) { header, section { padding: 12px 14px; } .legend { margin-left: 0; } }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""
