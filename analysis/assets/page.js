// A click on a heading sorts its table. An unknown value (text among numbers) stays at the end in both directions.
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
