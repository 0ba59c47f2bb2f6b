// Reads out the values under the pointer, or under a line that the arrow keys move.
for (const chart of document.querySelectorAll("svg.chart")) {
  const layers = JSON.parse(chart.dataset.layers);
  const from = Number(chart.dataset.from), to = Number(chart.dataset.to);
  const steps = [...new Set(layers.flatMap((layer) => layer.x))].sort((a, b) => a - b);
  const out = document.createElement("output");
  const cross = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cross.setAttribute("class", "cross");
  cross.setAttribute("y2", "100%");
  chart.before(out);
  chart.tabIndex = 0;
  let at = steps.length - 1;

  const nearest = (values, wanted) => {
    let low = 0, high = values.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (values[middle] <= wanted) low = middle; else high = middle;
    }
    return wanted - values[low] <= values[high] - wanted ? low : high;
  };
  const show = (place) => {
    at = Math.max(0, Math.min(steps.length - 1, place));
    const step = steps[at], x = `${((step - from) / (to - from)) * 100}%`;
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    chart.append(cross);
    const said = layers.map((layer) => `${layer.name} ${layer.y[nearest(layer.x, step)]}`);
    out.textContent = [`step ${Math.round(step).toLocaleString("en")}`, ...said].join("  ·  ");
  };
  const hide = () => { cross.remove(); out.textContent = ""; };

  for (const kind of ["pointermove", "pointerdown"]) {
    chart.addEventListener(kind, (event) => {
      const box = chart.getBoundingClientRect();
      show(nearest(steps, from + ((event.clientX - box.left) / box.width) * (to - from)));
    });
  }
  chart.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") hide(); // a finger leaves at once, and reads afterwards
  });
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const few = Math.max(1, Math.round(steps.length / 20));
    const moves = {
      ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - few, PageDown: at + few,
      Home: 0, End: steps.length - 1,
    };
    if (event.key === "Escape") hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}
