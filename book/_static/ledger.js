// Sorting and filtering for the ledger of claims. Without this script the table is complete, only not movable.
(() => {
  const ledger = document.getElementById("ledger");
  if (!ledger) return;
  const table = ledger.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const headers = [...table.tHead.rows[0].cells];
  const CHAPTER = headers.findIndex((header) => header.textContent === "Chapter");
  const VERDICT = headers.findIndex((header) => header.textContent === "Verdict");

  const key = (row, column) => {
    const cell = row.cells[column];
    const data = cell.querySelector("data");
    if (!data) return cell.textContent.trim().toLowerCase();
    const number = Number(data.value.replace("inf", "Infinity"));
    return Number.isNaN(number) ? -Infinity : number;
  };
  const compare = (a, b) => (typeof a === "number" ? (a > b) - (a < b) : a.localeCompare(b));

  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "lowdim-sort";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = header.getAttribute("aria-sort") === "ascending";
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sorted = [...body.rows].sort((a, b) => compare(key(a, column), key(b, column)) * (down ? -1 : 1));
      body.append(...sorted);
    });
  });

  const labelled = (text, control) => {
    const label = document.createElement("label");
    label.append(text, control);
    return label;
  };
  const choice = (column, all) => {
    const select = document.createElement("select");
    select.className = "form-select";
    const values = [...new Set(rows.map((row) => row.cells[column].textContent.trim()))];
    select.append(new Option(all, ""), ...values.map((value) => new Option(value, value)));
    return select;
  };
  const words = document.createElement("input");
  words.type = "search";
  words.className = "form-control";
  words.placeholder = "gradient, slope, 2021 …";
  const chapter = choice(CHAPTER, "all chapters");
  const verdict = choice(VERDICT, "all verdicts");
  const count = document.createElement("p");
  count.className = "lowdim-count";
  count.setAttribute("role", "status");

  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = wanted.every((word) => text.includes(word))
        && [[chapter, CHAPTER], [verdict, VERDICT]].every(
          ([select, column]) => !select.value || row.cells[column].textContent.trim() === select.value);
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} of ${rows.length} ${ledger.dataset.noun} shown`;
  };

  const controls = document.createElement("form");
  controls.className = "lowdim-filter";
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("input", filter);
  controls.append(labelled("Words", words), labelled("Chapter", chapter), labelled("Verdict", verdict), count);
  ledger.prepend(controls);
  filter();
})();
