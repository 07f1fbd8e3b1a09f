"""The HTML page of a report: one file without references, light or dark as the reader's system, readable from 400 px.

Tables scroll inside their box, with the first column and the columns of class ``key`` in sight. A click on a heading
sorts its table; without script the tables are as written.
"""

from collections.abc import Iterable
from html import escape

from analysis.figures import theme_css
from analysis.tables import Html

_STYLE = """\
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1700px;margin:0 auto;
padding:1.5rem clamp(.8rem,3vw,2.5rem)}
h1{margin:0 0 .2rem;overflow-wrap:anywhere}h2{margin:2.4rem 0 .6rem;font-size:1.3rem;line-height:1.25}
p,figcaption,nav{max-width:60rem}p.note,figcaption,caption,nav{color:var(--muted);font-size:.92rem}
a{color:var(--full)}nav ul{margin:.2rem 0;padding-left:1.2rem}
.wide{overflow-x:auto;margin:.4rem 0 1rem;max-width:max-content}
table{border-collapse:separate;border-spacing:0;font-size:.82rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:.5rem 0;font-weight:600}
th,td{padding:.28rem .45rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid);
background:var(--paper)}
thead th{font-weight:600;white-space:normal;vertical-align:bottom;border-bottom:1px solid var(--muted)}
thead tr:first-child:not(:last-child) th{color:var(--muted);font-weight:400;text-align:center}
th[scope=row],th.text,td.text{text-align:left}td.text{white-space:normal;min-width:5rem}
tbody th{font-weight:600}tbody tr:hover>*{background:var(--grid)}
th[scope=row],thead tr:last-child th:first-child{position:sticky;left:0;z-index:1;text-align:left;
border-right:1px solid var(--grid)}
.wraps{display:inline-block;white-space:normal;width:clamp(14rem,32vw,36rem);font-weight:400}
.good{color:var(--cpr_mfu)}.bad{color:var(--never_save)}.open{color:var(--muted)}
.key{position:sticky;right:0;z-index:1;border-left:1px solid var(--grid);font-weight:600}
th.sorts{cursor:pointer}th.sorts:hover{text-decoration:underline}
th[aria-sort=ascending]::after{content:" ▲"}th[aria-sort=descending]::after{content:" ▼"}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:1rem 2rem}
figure{margin:0;max-width:40rem}figure.broad{max-width:60rem}figure svg{display:block;width:100%;height:auto}
figcaption b{color:var(--ink)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;font-size:.9rem}
dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}
.alarm{border-left:4px solid var(--never_save);padding:.2rem 1rem;margin:1rem 0;overflow-wrap:anywhere}
.alarm ul{margin:.2rem 0;padding-left:1.2rem}code{font-size:.9em}
@media(max-width:600px){th[scope=row]{max-width:9rem;overflow:hidden;text-overflow:ellipsis}
dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}}
@media print{body{padding:0;font-size:11pt}.wide{overflow:visible}tr,figure{break-inside:avoid}
h2,caption{break-after:avoid}th[scope=row],thead tr:last-child th:first-child,.key{position:static}
td,th{white-space:normal}.wraps{width:auto}}
"""
# An unknown value (text among numbers) stays at the end in both directions.
_SCRIPT = """\
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells], body = table.tBodies[0];
  headings.forEach((heading, column) => {
    const value = row => {
      const text = row.cells[column].textContent.replaceAll("−", "-").replaceAll(",", ""), number = parseFloat(text);
      return isNaN(number) ? text : number;
    };
    const sort = () => {
      const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headings.forEach(other => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const compare = (a, b) => sign * (a > b ? 1 : a < b ? -1 : 0);
      const order = (a, b) => typeof a === typeof b ? compare(a, b) : typeof a === "number" ? -1 : 1;
      body.append(...[...body.rows].sort((a, b) => order(value(a), value(b))));
    };
    heading.classList.add("sorts");
    heading.tabIndex = 0;
    heading.addEventListener("click", sort);
    heading.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
}
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A page of the ``parts``, which are HTML; empty ones are left out."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{theme_css()}{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + f"\n<script>\n{_SCRIPT}</script>\n</body></html>\n"
    )


def notes(lines: Iterable[str]) -> Iterable[str]:
    """A paragraph of each line."""
    return (f'<p class="note">{escape(line)}</p>' for line in lines)


def figure_html(svg: str, title: str = "", caption: str = "", *, is_broad: bool = False) -> str:
    """A figure with its title and caption below it. ``is_broad``: of two panels."""
    text = caption if isinstance(caption, Html) else escape(caption)
    words = f"<b>{escape(title)}</b> {text}".strip() if title else text
    kind = ' class="broad"' if is_broad else ""
    return f"<figure{kind}>{svg}<figcaption>{words}</figcaption></figure>"
