"""The style sheet and the script of a report: constants, without any data.

Colours: ages are one hue that changes in lightness, so that they can be distinguished
with any kind of colour blindness and in grey; damage is vermilion, with a mark and a
pattern as well. Both schemes have a contrast of at least 4.5 for text.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

__all__ = ["AGES", "SCRIPT", "SCRIPT_HASH", "STYLE"]

# Groups of age that the map distinguishes: 0 is the oldest.
AGES: Final = 6

STYLE: Final = """
:root{color-scheme:light dark;
--bg:#f5f6f8;--card:#fff;--ink:#17202b;--soft:#566373;--line:#dfe3e9;--faint:#eef1f5;
--link:#1f5fae;--bar:#2d6fb8;--bar2:#0f8a7c;
--bad:#c2410c;--bad-bg:#fdf0e9;--warn:#8f5f00;--warn-bg:#fdf6e3;
--info:#2563a8;--info-bg:#edf4fc;--ok:#0b7a6b;--ok-bg:#e8f6f3;
--a0:#d5e3f0;--a1:#b3cde5;--a2:#86afd6;--a3:#538dc2;--a4:#2867a3;--a5:#0e3f73;
--shadow:0 1px 2px rgba(20,30,45,.06),0 1px 8px rgba(20,30,45,.04)}
@media (prefers-color-scheme:dark){:root{
--bg:#0f141a;--card:#171e26;--ink:#e7ecf2;--soft:#9aa8b8;--line:#2a3440;--faint:#1f2832;
--link:#7db4f0;--bar:#5b9be0;--bar2:#3fb8a6;
--bad:#ff8a4c;--bad-bg:#33201a;--warn:#e0b050;--warn-bg:#2d2718;
--info:#7db4f0;--info-bg:#1a2838;--ok:#4cc7b3;--ok-bg:#152c2a;
--a0:#24384d;--a1:#2f5071;--a2:#3d6d9b;--a3:#5b92c8;--a4:#8dbdec;--a5:#cfe6ff;
--shadow:none}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",
Arial,sans-serif;-webkit-text-size-adjust:100%;overflow-wrap:anywhere}
main{max-width:1120px;margin:0 auto;padding:32px 24px 48px}
header.top{display:flex;flex-wrap:wrap;gap:8px 20px;align-items:flex-start;
justify-content:space-between;margin-bottom:20px}
h1{font-size:28px;line-height:1.2;margin:0;letter-spacing:-.02em;font-weight:650}
.eyebrow{color:var(--soft);font-size:12px;letter-spacing:.09em;text-transform:uppercase;
font-weight:600;margin:0 0 4px}
.path{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
color:var(--soft);margin:4px 0 0}
h2{font-size:19px;letter-spacing:-.01em;margin:40px 0 12px;font-weight:650}
h2+.lead{margin-top:-8px}
h3{font-size:15px;margin:0 0 8px;font-weight:650}
.lead,.small{color:var(--soft)}.lead{margin:0 0 12px;max-width:76ch}
.small{font-size:13px}
.pill{display:inline-flex;align-items:center;gap:7px;padding:5px 13px;
border-radius:99px;font-weight:600;font-size:14px;white-space:nowrap}
.pill.critical{background:var(--bad-bg);color:var(--bad)}
.pill.warning{background:var(--warn-bg);color:var(--warn)}
.pill.info{background:var(--info-bg);color:var(--info)}
.pill.ok{background:var(--ok-bg);color:var(--ok)}
.icon{width:16px;height:16px;flex:none}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:1px;
background:var(--card);border:1px solid var(--line);border-radius:12px;overflow:hidden;
box-shadow:var(--shadow)}
.tile{box-shadow:0 0 0 1px var(--line);padding:13px 16px}
.tile b{display:block;font-size:20px;font-weight:650;letter-spacing:-.01em;
font-variant-numeric:tabular-nums;line-height:1.3}
.tile span{color:var(--soft);font-size:13px}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;
padding:16px 18px;box-shadow:var(--shadow)}
.card+.card{margin-top:12px}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));
gap:12px}
.two>.card+.card{margin-top:0}
ul.list{list-style:none;margin:0;padding:0;display:grid;gap:8px}
ul.list>li{background:var(--card);border:1px solid var(--line);
border-left:4px solid var(--level);border-radius:10px;padding:10px 14px;
display:grid;grid-template-columns:20px 1fr;gap:2px 10px;box-shadow:var(--shadow)}
li .icon{margin-top:3px}li>div{min-width:0}
li.critical{--level:var(--bad)}li.warning{--level:var(--warn)}
li.info{--level:var(--info)}li.ok{--level:var(--ok)}
li .icon,li .lvl{color:var(--level)}
.lvl{font-size:11px;font-weight:700;letter-spacing:.06em;text-transform:uppercase;
margin-left:8px;white-space:nowrap}
li p{margin:1px 0 0;color:var(--soft);font-size:14px}
code{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
background:var(--faint);border-radius:5px;padding:1px 6px}
li code{display:inline-block;margin-top:5px;user-select:all}
svg{display:block;width:100%}
.chart{position:relative;height:120px;padding-left:66px}
.chart svg{height:100%}
.chart .tick{position:absolute;left:0;right:0;border-top:1px dashed var(--line);
font-size:11px;color:var(--soft);line-height:1;padding-top:3px;pointer-events:none}
.chart svg{position:relative}
.axis{margin-left:66px;display:flex;justify-content:space-between;color:var(--soft);font-size:12px;
border-top:1px solid var(--soft);padding-top:4px;gap:8px;
font-variant-numeric:tabular-nums}
.bars rect{fill:var(--bar)}.bars.second rect{fill:var(--bar2)}
.bars rect:hover,.map rect:hover,.spark rect:hover{opacity:.72}
.spark{height:22px;width:120px}.spark rect{fill:var(--bar)}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:14px;overflow-wrap:normal}
th,td{text-align:left;padding:6px 14px 6px 0;border-bottom:1px solid var(--line);
vertical-align:middle;white-space:nowrap}
tr:last-child>td{border-bottom:0}
th{font-size:12px;color:var(--soft);font-weight:600;border-bottom-color:var(--line)}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td.wrap{white-space:normal;min-width:220px}
th button{all:unset;cursor:pointer;color:inherit}
th button:hover{color:var(--ink)}
th button:focus-visible,summary:focus-visible,a:focus-visible{
outline:2px solid var(--link);outline-offset:2px;border-radius:4px}
th[aria-sort=ascending] button::after{content:" \\2191"}
th[aria-sort=descending] button::after{content:" \\2193"}
a{color:var(--link)}
details{margin-top:12px}details.topic{margin-top:0}
details.topic+details.topic{margin-top:12px}
summary{cursor:pointer}summary::marker{color:var(--soft)}
details.topic>summary{font-weight:650;font-size:16px}
details.topic>summary .small{font-weight:400;margin-left:8px}
.topic .body{padding-top:12px}
.row{display:grid;grid-template-columns:minmax(84px,11%) 1fr minmax(76px,9%);gap:12px;
align-items:center;padding:2px 0;font-size:13px}
.row .name{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.row .size{text-align:right;color:var(--soft);font-variant-numeric:tabular-nums;
white-space:nowrap}
.map{height:30px;background:var(--faint);border-radius:3px}
.map rect{stroke:var(--card);stroke-width:1;vector-effect:non-scaling-stroke}
.map.dense rect{stroke:none}
.map .a0{fill:var(--a0)}.map .a1{fill:var(--a1)}.map .a2{fill:var(--a2)}
.map .a3{fill:var(--a3)}.map .a4{fill:var(--a4)}.map .a5{fill:var(--a5)}
.map .hurt{fill:url(#hurt)}.map .mark{fill:var(--bad);stroke:none}
.map .idx{fill:var(--warn);stroke:none}
#hurt rect{fill:var(--bad-bg)}#hurt path{stroke:var(--bad);stroke-width:3}
.legend{display:flex;flex-wrap:wrap;gap:6px 16px;font-size:13px;color:var(--soft);
margin:0 0 14px;align-items:center}
.legend i{display:inline-block;width:14px;height:14px;border-radius:3px;
vertical-align:-2px;margin-right:6px}
.legend .hurt{background:repeating-linear-gradient(45deg,var(--bad) 0 3px,
var(--bad-bg) 3px 7px);border-top:3px solid var(--bad)}
.legend .idx{background:linear-gradient(var(--faint) 72%,var(--warn) 72%)}
.meter{height:9px;border-radius:5px;background:var(--faint);min-width:120px;
overflow:hidden;position:relative}
.meter i{position:absolute;inset:0 auto 0 0;background:var(--bar);border-radius:5px}
dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:7px 12px;margin:0;
font-size:14px}
dl.facts dt{display:flex;gap:9px;align-items:flex-start;font-weight:600}
dl.facts dd{margin:0;color:var(--soft);min-width:0}
dl.facts .icon{margin-top:3px;color:var(--level)}
dt.critical{--level:var(--bad)}dt.warning{--level:var(--warn)}
dt.info{--level:var(--info)}dt.ok{--level:var(--ok)}
.hist{display:flex;align-items:flex-end;gap:3px;height:96px;
border-bottom:1px solid var(--soft)}
.hist i{flex:1;background:var(--bar2);border-radius:2px 2px 0 0;min-height:1px}
.hist+.hx{display:flex;gap:3px;font-size:11px;color:var(--soft)}
.hx span{flex:1;text-align:center;white-space:nowrap;overflow:hidden}
#tip{position:fixed;z-index:9;max-width:min(380px,92vw);padding:7px 11px;
border-radius:8px;background:var(--ink);color:var(--card);font-size:13px;
line-height:1.45;pointer-events:none;white-space:pre-line;display:none}
footer{margin-top:40px;color:var(--soft);font-size:13px;border-top:1px solid
var(--line);padding-top:14px}
@media (max-width:620px){main{padding:20px 14px 32px}h1{font-size:23px}
h2{font-size:17px;margin-top:32px}.tiles{grid-template-columns:1fr 1fr}
.card{padding:13px 13px}.row{grid-template-columns:1fr auto;gap:1px 12px;
padding:5px 0}.row .bar{grid-column:1/-1;grid-row:2}.path{font-size:12px}
dl.facts{grid-template-columns:1fr}dl.facts dd{margin:-6px 0 4px 25px}}
@media print{body{background:#fff}details>*{display:block}.card,ul.list>li{
break-inside:avoid;box-shadow:none}}
"""

SCRIPT: Final = """
(function(){'use strict';
var tip=document.createElement('div');tip.id='tip';document.body.appendChild(tip);
function text(el){var t=el.querySelector&&el.querySelector('title');
if(!t)return el.dataset?el.dataset.tip:null;
el.dataset.tip=t.textContent;t.remove();return el.dataset.tip}
function show(e){var el=e.target.closest&&e.target.closest('rect,[data-tip]');
var t=el&&text(el);if(!t){tip.style.display='none';return}
tip.textContent=t;tip.style.display='block';
var w=tip.offsetWidth,h=tip.offsetHeight,x=e.clientX+14,y=e.clientY+16;
if(x+w>innerWidth-8)x=Math.max(8,innerWidth-w-8);
if(y+h>innerHeight-8)y=e.clientY-h-12;
tip.style.left=x+'px';tip.style.top=y+'px'}
document.addEventListener('pointermove',show);
document.addEventListener('pointerdown',show);
document.addEventListener('scroll',function(){tip.style.display='none'},true);
document.querySelectorAll('table.sort').forEach(function(table){
table.querySelectorAll('thead th').forEach(function(th,at){
var b=document.createElement('button');b.type='button';
while(th.firstChild)b.appendChild(th.firstChild);th.appendChild(b);
b.addEventListener('click',function(){
var down=th.getAttribute('aria-sort')!=='descending';
table.querySelectorAll('th').forEach(function(o){o.removeAttribute('aria-sort')});
th.setAttribute('aria-sort',down?'descending':'ascending');
var body=table.tBodies[0],rows=Array.prototype.slice.call(body.rows);
function key(r){var c=r.cells[at];return c.dataset.v===undefined?c.textContent:
+c.dataset.v}
rows.sort(function(a,b){var x=key(a),y=key(b);
var d=typeof x==='number'?x-y:String(x).localeCompare(y,'en',{numeric:true});
return down?-d:d});
rows.forEach(function(r){body.appendChild(r)})})})})})();
"""

# The policy of the page lets only this script run, even if others are injected.
SCRIPT_HASH: Final = (
    "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
)
