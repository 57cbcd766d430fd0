// A click on a heading sorts the rows of its table, a second one the other way round; numbers by size, other cells by letter.
document.addEventListener("click", (event) => {
  const heading = event.target.closest(".md-typeset table th");
  if (!heading) return;
  const body = heading.closest("table").tBodies[0];
  const column = [...heading.parentNode.children].indexOf(heading);
  const down = heading.dataset.order !== "down";
  heading.dataset.order = down ? "down" : "up";
  const compared = new Intl.Collator(undefined, { numeric: true }).compare;
  const cell = (row) => row.cells[column].textContent.trim();
  const rows = [...body.rows].sort((one, other) => compared(cell(one), cell(other)) * (down ? 1 : -1));
  body.append(...rows);
});
