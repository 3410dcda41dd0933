// The turns of a chat as a tree: an edit or another answer is a branch beside the former one. A turn is {id, chat, parent,
// at, message}; a user's also has {typed, files}, an answer's {reason, note, failure, usage}, and while it is written
// {stream, base, before}: see answers.js.

export class Tree {
  constructor(turns) {
    this.turns = new Map();
    this.branches = new Map(); // id of a turn, or null -> the turns after it, oldest first
    for (const turn of [...turns].sort((a, b) => a.at - b.at)) this.add(turn);
  }

  add(turn) {
    this.turns.set(turn.id, turn);
    this.branches.set(turn.parent, [...this.after(turn.parent), turn]);
  }

  remove(turn) {
    this.turns.delete(turn.id);
    this.branches.set(turn.parent, this.after(turn.parent).filter(({ id }) => id !== turn.id));
  }

  after(id) {
    return this.branches.get(id) ?? [];
  }

  // The turns up to a leaf, in order. Without a known leaf, up to the newest one.
  path(leaf) {
    const turns = [];
    const last = this.turns.get(leaf) ?? this.newestLeaf(null);
    for (let turn = last; turn; turn = this.turns.get(turn.parent)) turns.unshift(turn);
    return turns;
  }

  // The last turn of the newest branch after a turn; null: of the chat.
  newestLeaf(turn) {
    let last = turn;
    for (let next; (next = this.after(last?.id ?? null).at(-1)); ) last = next;
    return last;
  }

  isAncestor(id, leaf) {
    return this.path(leaf).some((turn) => turn.id === id);
  }

  // An answer without content and what was asked for it alone, last first.
  unanswered(answer) {
    const gone = [answer];
    for (let turn = this.turns.get(answer.parent); turn && turn.message.role !== "assistant"; ) {
      if (this.after(turn.id).length > 1) break;
      gone.push(turn);
      turn = this.turns.get(turn.parent);
    }
    return gone;
  }
}
