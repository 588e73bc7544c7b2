# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""How the report looks: light and dark, on a phone and on paper. Pure."""

from __future__ import annotations

import base64
import hashlib
import re

LIGHT = {
    "back": "#ffffff", "card": "#f4f6f8", "line": "#6b7580", "faint": "#d3d9df", "text": "#16191d", "soft": "#4a525b", "on": "#ffffff",
    "good": "#1b6b32", "bad": "#b3201b", "wait": "#7a5200", "plan": "#1d5fb8", "floor": "#b3201b", "curve": "#0b6e69",
    "p0": "#50565d", "p1": "#50607a", "p2": "#1d5fb8", "p3": "#0b6e69", "p4": "#7038a8", "p5": "#9a3d0c", "p6": "#9c1d59", "p7": "#396b12", "p8": "#6a5800",
    "p9": "#1b6b32",
}  # fmt: skip
"""Colours by name; each C(p) is a phase's. White stands on every one of them."""
DARK = {
    "back": "#14171b", "card": "#1f242a", "line": "#8d98a4", "faint": "#3a424b", "text": "#e9edf1", "soft": "#b4bdc7", "on": "#101214",
    "good": "#7ed698", "bad": "#ff9d96", "wait": "#f0c060", "plan": "#8cbcff", "floor": "#ff9d96", "curve": "#6ad3c9",
    "p0": "#b3bac2", "p1": "#a9b9d4", "p2": "#86b8ff", "p3": "#5fcabf", "p4": "#cba4f5", "p5": "#f2a578", "p6": "#f594c0", "p7": "#9fd87a", "p8": "#dcc75e",
    "p9": "#7ed698",
}  # fmt: skip
"""The same for a dark screen, black standing on them."""

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--back);color:var(--text);font:1rem/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main,header,footer{max-width:70rem;margin:0 auto;padding:0 1rem}
h1{font-size:1.5rem;line-height:1.25;margin:.75rem 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.25rem 0 .5rem;border-bottom:1px solid var(--faint);padding-bottom:.25rem}
h3{font-size:1rem;margin:1.25rem 0 .25rem;overflow-wrap:anywhere}
p{margin:.5rem 0;overflow-wrap:anywhere}
.soft,footer{color:var(--soft);font-size:.875rem}
.banner{border:1px solid var(--faint);border-left:.5rem solid var(--soft);border-radius:.4rem;background:var(--card);padding:.75rem 1rem;margin:1rem 0}
.banner.good{border-left-color:var(--good)}.banner.bad{border-left-color:var(--bad)}.banner.wait{border-left-color:var(--wait)}
.word{display:inline-block;font-weight:700;letter-spacing:.03em;border-radius:.3rem;padding:.1rem .6rem;background:var(--soft);color:var(--on)}
.word.good{background:var(--good)}.word.bad{background:var(--bad)}.word.wait{background:var(--wait)}
.summary{font-size:1.1rem;font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:.5rem 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere;min-width:0}
.cards{display:grid;gap:.75rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr));margin:0;padding:0;list-style:none}
.cards>li{background:var(--card);border:1px solid var(--faint);border-radius:.4rem;padding:.6rem .8rem;min-width:0}
.cards>li.culprit{border:2px solid var(--bad)}
.cards h3{margin:0 0 .4rem}.cards p{margin:.4rem 0 0}
.badge{font-size:.8rem;font-weight:700;color:var(--on);background:var(--bad);border-radius:.3rem;padding:.05rem .45rem;margin-left:.4rem;white-space:nowrap}
pre{background:var(--card);border:1px solid var(--faint);border-radius:.4rem;padding:.6rem .8rem;margin:.5rem 0;
font:.8125rem/1.45 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.scroll{overflow-x:auto;margin:.5rem 0;background:linear-gradient(to right,var(--back) 30%,transparent) left/3rem 100% no-repeat local,
linear-gradient(to left,var(--back) 30%,transparent) right/3rem 100% no-repeat local,
linear-gradient(to right,var(--faint),transparent) left/.9rem 100% no-repeat scroll,
linear-gradient(to left,var(--faint),transparent) right/.9rem 100% no-repeat scroll}
table{border-collapse:collapse;width:100%;font-size:.875rem}
caption{text-align:left;color:var(--soft);padding:.25rem 0}
th,td{text-align:left;vertical-align:top;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--faint)}
thead th{color:var(--soft);font-weight:600;border-bottom-color:var(--line)}
tbody th{white-space:nowrap}thead .number{white-space:normal}.long{min-width:15rem}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
details{margin:.5rem 0}
summary{cursor:pointer;color:var(--soft);padding:.35rem 0}
:focus-visible{outline:3px solid var(--plan);outline-offset:2px}
svg{display:block;font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
svg text{fill:var(--text);stroke:var(--back);stroke-width:3px;paint-order:stroke}
svg .soft{fill:var(--soft)}svg .on{fill:var(--on);stroke:none;font-weight:600}.cards svg text{stroke:none}
svg .strong{font-weight:700}
svg .faint{stroke:var(--faint);stroke-width:1}svg .axis{stroke:var(--line);stroke-width:1}
.seg{stroke:var(--back);stroke-width:1}
.hollow{fill:none;stroke:var(--line);stroke-width:1.5;stroke-dasharray:3 3}
.quiet{stroke:var(--back);stroke-width:3}
.mark{fill:none;stroke:var(--text);stroke-width:2.5}.mark.bad{stroke:var(--bad)}.halo{fill:var(--back)}
.curve{fill:none;stroke:var(--curve);stroke-width:2;vector-effect:non-scaling-stroke}.area{fill:var(--curve);opacity:.15}.dot{fill:var(--back);stroke:var(--curve);stroke-width:2}
.plan{stroke:var(--plan);stroke-width:2;stroke-dasharray:8 5}.floor{stroke:var(--floor);stroke-width:2;stroke-dasharray:2 4}
svg .plan-word{fill:var(--plan)}svg .floor-word{fill:var(--floor)}
svg .good-word{fill:var(--good)}svg .bad-word{fill:var(--bad)}svg .wait-word{fill:var(--wait)}
.good-word{color:var(--good);font-weight:700}.bad-word{color:var(--bad);font-weight:700}.wait-word{color:var(--wait);font-weight:700}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1rem;margin:.25rem 0;padding:0;list-style:none;font-size:.8125rem}
.legend li{display:flex;align-items:center;gap:.35rem}
.narrow{display:none}
footer{margin-top:2.5rem;padding-bottom:2rem}
@media (max-width:40rem){.wide{display:none}.narrow{display:inline}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}h1{font-size:1.25rem}}
@media print{@page{margin:12mm}body{font-size:10.5pt}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
h2,h3{break-after:avoid}.cards>li,figure,tr{break-inside:avoid}.scroll{overflow:visible}details::details-content{content-visibility:visible;block-size:auto}
summary{list-style:none}}
figure{margin:.5rem 0}
"""


def _colours(colours: dict[str, str]) -> str:
    return ":root{" + "".join(f"--{name}:{value};" for name, value in colours.items()) + "}"


def _style() -> str:
    phases = "".join(f".p{at}{{fill:var(--p{at})}}" for at in range(10))
    # Paper is light whatever the screen is.
    dark = f"@media screen and (prefers-color-scheme:dark){{{_colours(DARK)}}}"
    return re.sub(r"\n", "", f":root{{color-scheme:light dark}}{_colours(LIGHT)}{dark}{_RULES}{phases}")


STYLE = _style()
"""The whole of it."""
POLICY = f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; base-uri 'none'; form-action 'none'"
"""What a browser may do with the page: apply this style, by its hash. Nothing is fetched and nothing runs, even if a text were not escaped."""
