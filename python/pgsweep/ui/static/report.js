"use strict";
(() => {
  const named = (tag, properties) => Object.assign(document.createElement(tag), properties);

  function save(name, blob) {
    const link = named("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // A picture leaves the page without its style sheet, so what the sheet says is written into the copy.
  const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin",
    "stroke-linecap", "font-family", "font-size", "font-weight"];
  function standalone(svg) {
    const copy = svg.cloneNode(true);
    const [from, to] = [svg, copy].map((root) => [root, ...root.querySelectorAll("*")]);
    from.forEach((element, i) => {
      const computed = getComputedStyle(element);
      STYLES.forEach((name) => to[i].style.setProperty(name, computed.getPropertyValue(name)));
    });
    copy.querySelectorAll(".hit, .cross").forEach((element) => element.remove());
    const box = svg.viewBox.baseVal;
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    return new XMLSerializer().serializeToString(copy);
  }

  function savePng(svg, name) {
    const scale = 2, box = svg.viewBox.baseVal;
    const image = new Image();
    image.onload = () => {
      const canvas = named("canvas", { width: box.width * scale, height: box.height * scale });
      const context = canvas.getContext("2d");
      context.fillStyle = getComputedStyle(svg.closest("section")).backgroundColor;
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(name, blob), "image/png");
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(standalone(svg));
  }

  document.querySelectorAll("figure").forEach((figure, index) => {
    const svg = figure.querySelector("svg");
    const name = `pgsweep-${figure.closest("section").id}-${index + 1}`;
    const saves = named("span", { className: "saves" });
    const png = named("button", { textContent: "PNG", title: "save this figure as PNG" });
    const vector = named("button", { textContent: "SVG", title: "save this figure as SVG" });
    png.onclick = () => savePng(svg, name + ".png");
    vector.onclick = () => save(name + ".svg", new Blob([standalone(svg)], { type: "image/svg+xml" }));
    saves.append(png, vector);
    figure.append(saves);

    const hits = svg.querySelectorAll(".hit");
    if (!hits.length) return;
    const tip = named("div", { className: "tip", hidden: true });
    figure.append(tip);
    const cross = document.createElementNS("http://www.w3.org/2000/svg", "path");
    cross.setAttribute("class", "cross");
    svg.insertBefore(cross, svg.querySelector(".band, .line, .mark"));
    const hide = () => { tip.hidden = true; cross.removeAttribute("d"); };
    hits.forEach((hit) => {
      const title = hit.querySelector("title");
      const text = title.textContent;
      title.remove();
      hit.setAttribute("aria-label", text);
      const show = () => {
        const x = Number(hit.dataset.x), top = Number(hit.getAttribute("y"));
        const scale = svg.clientWidth / svg.viewBox.baseVal.width;
        cross.setAttribute("d", `M${x} ${top}v${hit.getAttribute("height")}`);
        tip.textContent = text;
        tip.hidden = false;
        const left = x * scale + 14 + tip.offsetWidth > figure.clientWidth ? x * scale - 14 - tip.offsetWidth : x * scale + 14;
        tip.style.left = `${Math.max(0, left)}px`;
        tip.style.top = `${top * scale + 28}px`;
      };
      hit.addEventListener("mouseenter", show);
      hit.addEventListener("focus", show);
      hit.addEventListener("mouseleave", hide);
      hit.addEventListener("blur", hide);
    });
  });

  const data = (id) => document.getElementById(id).textContent;
  const places = document.getElementById("saves");
  for (const [label, file, type, text] of [
    ["save JSON", "pgsweep.json", "application/json", () => data("pgsweep-result")],
    ["save CSV", "pgsweep.csv", "text/csv", () => JSON.parse(data("pgsweep-csv"))],
  ]) {
    const button = named("button", { textContent: label });
    button.onclick = () => save(file, new Blob([text()], { type }));
    places.append(button);
  }
})();
