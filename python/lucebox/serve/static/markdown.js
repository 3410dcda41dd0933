// Shows Markdown that grows while a model writes.
import { blocks } from "/static/blocks.js";

export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.sources = []; // of the blocks shown
  }

  // Only blocks that have changed are made anew: a selection above them stays.
  show(text) {
    const shown = [...blocks(text.split(/\r\n?|\n/))];
    let same = 0;
    while (same < shown.length && shown[same].source === this.sources[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    for (const { make } of shown.slice(same)) this.element.append(make());
    this.sources = shown.map(({ source }) => source);
  }
}
