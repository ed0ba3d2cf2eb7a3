// A click on a heading sorts the table by its column. The page can be read without this script.
for (const table of document.querySelectorAll("figure.table table")) {
  const headings = [...table.querySelectorAll("th[data-column]")];
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  const sort = (heading) => {
    const column = Number(heading.dataset.column);
    const number = heading.classList.contains("num");
    const down = heading.ariaSort ? heading.ariaSort === "ascending" : number;
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => (down ? -1 : 1) * compare(key(a, column), key(b, column)));
    table.tBodies[0].append(...rows);
  };
  for (const heading of headings) {
    heading.setAttribute("role", "button");
    heading.tabIndex = 0;
    heading.addEventListener("click", () => sort(heading));
    heading.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        sort(heading);
      }
    });
  }
}
