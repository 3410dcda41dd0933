// ContextIndex: finds where the last tokens of a text occurred before. A compressed trie over the contexts of all
// positions: the path of position p spells tokens[p], tokens[p - 1], ... kMaxContext tokens back. Each position is a
// leaf. Inner nodes are contexts that occur more than once and branch, so a leaf's parent is the longest context that
// the position shares with another position. Children are listed newest first, so a search finds a context's newest
// occurrences without visiting older ones.
//   append      one path: at most kMaxContext nodes
//   truncate    the ancestors of the dropped positions
//   drop_oldest one leaf per position
// The constructor reserves all memory, about 60 bytes per position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/memory.h"

namespace lb {

class ContextIndex {
 public:
  static constexpr int kMaxContext = 64;
  static constexpr int32_t kGap = -1;  // precedes each text kMaxContext times, so that no context spans two texts

  explicit ContextIndex(int capacity);  // most positions held: tokens and gaps
  static size_t planned_bytes(int capacity);

  // Positions count up from 0. The index holds positions [begin(), end()).
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  int capacity() const { return static_cast<int>(capacity_); }
  int32_t token(int64_t position) const { return position < end_ ? tokens_[slot(position)] : kGap; }

  void start_text();           // writes the gap before a text
  void append(int32_t token);  // to the newest text; token >= 0
  void truncate(int64_t end);  // drops tokens of the newest text, so that end() == end
  void drop_oldest();          // drops the oldest text and its gap
  void clear();

  // A suffix that occurs in the index. The positions of its last token are returned newest first.
  struct Match {
    int length = 0;  // tokens, at most kMaxContext; 0: no occurrence
    int n = 0;       // positions written, at most positions.size()
  };
  // The longest suffix of the newest text that occurs before its end. The index must hold only this text.
  Match match_end(std::span<int64_t> positions) const;
  // The longest suffix of `tokens`.
  Match match(std::span<const int32_t> tokens, std::span<int64_t> positions) const;

 private:
  using Node = uint32_t;  // a leaf: the slot of its position; an inner node: capacity_ + its number
  static constexpr Node kNone = ~Node(0);
  struct Link {
    Node parent, next, prev;  // next: the next older sibling
    int32_t token;            // first token of the edge from the parent
  };
  struct Inner {
    Node first;       // newest child; in an unused node: the next unused node
    uint32_t newest;  // slot of the newest leaf below
    int32_t depth;    // tokens of the context
  };
  struct Layout {
    int32_t* tokens;  // [capacity] ring buffer
    Link* links;      // [2 * capacity + 1]
    Inner* inner;     // [capacity + 1], the root first
    Node* edges;      // [n_edges(capacity)] hash table of (parent, token): child + 1, 0: free
  };
  static Layout layout(Carver& carver, int capacity);
  static size_t n_edges(int capacity) { return size_t(3) * capacity; }  // load factor at most 2/3

  // --- positions
  uint32_t slot(int64_t position) const { return static_cast<uint32_t>(position % capacity_); }
  uint32_t back(uint32_t slot, uint32_t n) const { return slot >= n ? slot - n : slot + capacity_ - n; }
  uint32_t age_rank(uint32_t slot) const { return back(slot, first_slot_); }  // larger: newer
  int64_t position(uint32_t slot) const { return begin_ + age_rank(slot); }

  // --- nodes
  bool is_leaf(Node node) const { return node < capacity_; }
  Node root() const { return capacity_; }
  Inner& inner(Node node) { return inner_[node - capacity_]; }
  const Inner& inner(Node node) const { return inner_[node - capacity_]; }
  uint32_t newest(Node node) const { return is_leaf(node) ? node : inner(node).newest; }
  int depth(Node node) const { return is_leaf(node) ? kMaxContext : inner(node).depth; }
  Node new_inner(int depth);
  void free_inner(Node node);
  void push_front(Node parent, Node child);
  void unlink(Node child);
  void insert_leaf(uint32_t leaf);
  void attach(Node parent, Node child, int32_t token);
  void replace(Node old, Node with);  // in the table of edges
  void remove_leaf(uint32_t leaf);
  void prune(Node node, uint32_t cut);
  Match collect(Node from, bool with_siblings, int length, std::span<int64_t> positions) const;

  // --- edges
  bool has_edges(Node parent) const { return depth(parent) < kMaxContext; }
  size_t home(Node parent, int32_t token) const;
  size_t find_edge(Node parent, int32_t token) const;  // index of the edge, or of a free entry
  Node child(Node parent, int32_t token) const;
  void add_edge(Node child);
  void remove_edge(Node child);

  Arena arena_;
  uint32_t capacity_, first_slot_ = 0;
  int64_t begin_ = 0, end_ = 0;
  int32_t* tokens_;
  Link* links_;
  Inner* inner_;
  Node* edges_;
  size_t n_edges_;
  Node unused_ = kNone;       // free list of inner nodes
  uint32_t n_inner_ = 0;      // inner nodes used at least once
  std::vector<Node> pruned_;  // stack of prune()
};

}  // namespace lb
