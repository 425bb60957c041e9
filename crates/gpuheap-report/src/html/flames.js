// A flame graph on a canvas. Frames grow downwards from the root. It draws only frames that are
// wider than a pixel, so its time depends on the window and not on the number of stacks.
"use strict";

class Flames {
  constructor(canvas, tip) {
    this.canvas = canvas;
    this.root = null;
    this.zoomed = null;
    this.boxes = [];
    this.row = 18;
    canvas.addEventListener("mousemove", (event) => {
      const box = this.at(event);
      canvas.style.cursor = box ? "pointer" : "";
      tip(event, box && this.describe(box.node));
    });
    canvas.addEventListener("mouseleave", (event) => tip(event, null));
    canvas.addEventListener("click", (event) => {
      const box = this.at(event);
      if (box) {
        this.zoomed = box.node === this.root ? null : box.node;
        this.draw();
      }
    });
  }

  // Shows a tree of { name, bytes, before, children }. `before` is null if no moment is compared.
  show(root, describe, colour) {
    const path = [];
    for (let node = this.zoomed; node && node.parent; node = node.parent) path.unshift(node.name);
    this.root = root;
    this.describe = describe;
    this.colour = colour;
    // Stays zoomed to the frame of the same path.
    let node = root;
    for (const name of path) node = node && node.children.get(name);
    this.zoomed = path.length && node ? node : null;
    this.draw();
  }

  draw() {
    if (!this.root) return;
    const weight = (node) => Math.max(node.bytes, node.before ?? 0);
    const path = [];
    for (let node = this.zoomed ?? this.root; node; node = node.parent) path.unshift(node);
    const width = this.canvas.clientWidth;
    this.boxes = path.map((node, depth) => ({ node, depth, x: 0, width }));
    const lay = (node, depth, x, width) => {
      const total = [...node.children.values()].reduce((sum, child) => sum + weight(child), 0);
      const unit = width / Math.max(weight(node), total, 1);
      const children = [...node.children.values()].sort((a, b) => weight(b) - weight(a));
      for (const child of children) {
        const part = weight(child) * unit;
        if (part < 1) break;
        this.boxes.push({ node: child, depth, x, width: part });
        lay(child, depth + 1, x, part);
        x += part;
      }
    };
    lay(path[path.length - 1], path.length, 0, width);
    const depth = this.boxes.reduce((most, box) => Math.max(most, box.depth), 0) + 1;
    const pen = sharp(this.canvas, Math.max(depth * this.row, 60));
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    for (const { node, depth, x, width } of this.boxes) {
      pen.fillStyle = this.colour(node);
      pen.fillRect(x, depth * this.row, Math.max(width - 1, 1), this.row - 1);
      if (width > 30) {
        pen.save();
        pen.beginPath();
        pen.rect(x, depth * this.row, width - 4, this.row);
        pen.clip();
        pen.fillStyle = "#1c2430";
        pen.fillText(node.name, x + 4, depth * this.row + this.row / 2);
        pen.restore();
      }
    }
  }

  at(event) {
    const depth = Math.floor(event.offsetY / this.row);
    const x = event.offsetX;
    return this.boxes.find((box) => box.depth === depth && box.x <= x && x < box.x + box.width);
  }
}

// Sizes a canvas for the screen's pixels, and returns its cleared context.
function sharp(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, canvas.clientWidth, height);
  return pen;
}
