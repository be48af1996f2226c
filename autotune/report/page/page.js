"use strict";
for (const source of document.querySelectorAll("script[type='application/json'][data-chart]")) {
  const figure = JSON.parse(source.textContent);
  const place = document.getElementById(source.dataset.chart);
  Plotly.newPlot(place, figure.data, figure.layout, { responsive: true, displaylogo: false, displayModeBar: false });
}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = (a, b) => {
      if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
      const order = key(a).localeCompare(key(b), "en", { numeric: false });
      const numeric = Number(key(a)) - Number(key(b));
      return (Number.isNaN(numeric) ? order : numeric) * (ascending ? 1 : -1);
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  }));
}
