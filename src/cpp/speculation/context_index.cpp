#include "speculation/context_index.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace lb {

ContextIndex::Layout ContextIndex::layout(Carver& carver, int capacity) {
  Layout layout;
  layout.tokens = carver.take<int32_t>(capacity);
  layout.links = carver.take<Link>(size_t(2) * capacity + 1);
  layout.inner = carver.take<Inner>(size_t(capacity) + 1);
  layout.edges = carver.take<Node>(n_edges(capacity));
  return layout;
}

size_t ContextIndex::planned_bytes(int capacity) {
  Carver carver;
  layout(carver, capacity);
  return carver.used();
}

ContextIndex::ContextIndex(int capacity)
    : arena_(planned_bytes(capacity)), capacity_(capacity), n_edges_(n_edges(capacity)) {
  Carver carver(arena_);
  const Layout parts = layout(carver, capacity);
  tokens_ = parts.tokens, links_ = parts.links, inner_ = parts.inner, edges_ = parts.edges;
  clear();
}

void ContextIndex::clear() {
  if (n_inner_ > 0) std::memset(edges_, 0, n_edges_ * sizeof(Node));
  begin_ = end_ = 0;
  first_slot_ = 0;
  unused_ = kNone;
  n_inner_ = 0;
  const Node top = new_inner(0);
  LB_ASSERT(top == root());
  links_[top] = {.parent = kNone, .next = kNone, .prev = kNone, .token = kGap};
}

void ContextIndex::start_text() {
  LB_ASSERT(end_ - begin_ + kMaxContext <= capacity_);
  for (int i = 0; i < kMaxContext; ++i) tokens_[slot(end_++)] = kGap;
}

void ContextIndex::append(int32_t token) {
  LB_ASSERT(end_ - begin_ < capacity_);
  const uint32_t leaf = slot(end_++);
  tokens_[leaf] = token;
  insert_leaf(leaf);
}

void ContextIndex::insert_leaf(uint32_t leaf) {
  for (Node node = root();;) {
    Inner& at = inner(node);
    at.newest = leaf;
    if (at.depth == kMaxContext) return attach(node, leaf, kGap);
    const int32_t token = tokens_[back(leaf, at.depth)];
    const Node next = child(node, token);
    if (next == kNone) return attach(node, leaf, token);

    const uint32_t other = newest(next);
    const int end = depth(next);
    int shared = at.depth + 1;
    while (shared < end && tokens_[back(leaf, shared)] == tokens_[back(other, shared)]) ++shared;
    unlink(next);
    if (shared == end && !is_leaf(next)) {
      push_front(node, next);
      node = next;
      continue;
    }
    // The edge branches here; two leaves with equal contexts branch at the end, without edges.
    const Node branch = new_inner(shared);
    inner(branch).newest = leaf;
    links_[branch].token = token;
    replace(next, branch);
    push_front(node, branch);
    attach(branch, next, tokens_[back(other, shared)]);
    return attach(branch, leaf, tokens_[back(leaf, shared)]);
  }
}

void ContextIndex::truncate(int64_t end) {
  LB_ASSERT(end >= begin_ && end <= end_);
  if (end == end_) return;
  prune(root(), static_cast<uint32_t>(end - begin_));
  end_ = end;
}

// Drops the leaves of rank `cut` and newer below an inner node. Such leaves are below its first children.
void ContextIndex::prune(Node node, uint32_t cut) {
  Inner& at = inner(node);
  const size_t base = pruned_.size();
  while (at.first != kNone && age_rank(newest(at.first)) >= cut) {
    const Node top = at.first;
    unlink(top);
    if (is_leaf(top)) {
      if (has_edges(node)) remove_edge(top);
      continue;
    }
    prune(top, cut);
    const Node only = inner(top).first;
    if (only == kNone) {
      remove_edge(top);
      free_inner(top);
    } else if (links_[only].next == kNone) {  // no branch is left: the only child replaces the node
      unlink(only);
      if (has_edges(top)) remove_edge(only);
      links_[only].token = links_[top].token;
      replace(top, only);
      free_inner(top);
      pruned_.push_back(only);
    } else {
      pruned_.push_back(top);
    }
  }
  // The remaining nodes' newest leaves are older now: re-sort the nodes by age.
  const auto is_newer = [this](Node a, Node b) { return age_rank(newest(a)) > age_rank(newest(b)); };
  std::sort(pruned_.begin() + base, pruned_.end(), is_newer);
  Node after = kNone, before = at.first;  // the next node goes between these
  for (size_t i = base; i < pruned_.size(); ++i) {
    const Node put = pruned_[i];
    while (before != kNone && is_newer(before, put)) after = before, before = links_[before].next;
    links_[put].parent = node, links_[put].prev = after, links_[put].next = before;
    (after == kNone ? at.first : links_[after].next) = put;
    if (before != kNone) links_[before].prev = put;
    after = put;
  }
  pruned_.resize(base);
  if (at.first != kNone) at.newest = newest(at.first);
}

void ContextIndex::drop_oldest() {
  LB_ASSERT(end_ > begin_);
  int64_t at = begin_;
  while (at < end_ && token(at) == kGap) ++at;
  for (; at < end_ && token(at) != kGap; ++at) remove_leaf(slot(at));
  begin_ = at;
  first_slot_ = slot(begin_);
}

// The leaf is the oldest position, so it is an ancestor's newest leaf only if it is that ancestor's only leaf.
void ContextIndex::remove_leaf(uint32_t leaf) {
  const Node parent = links_[leaf].parent;
  unlink(leaf);
  if (has_edges(parent)) remove_edge(leaf);
  const Node only = inner(parent).first;
  if (parent == root() || links_[only].next != kNone) return;
  if (has_edges(parent)) remove_edge(only);
  links_[only] = links_[parent];
  replace(parent, only);
  (links_[only].prev == kNone ? inner(links_[only].parent).first : links_[links_[only].prev].next) = only;
  if (links_[only].next != kNone) links_[links_[only].next].prev = only;
  free_inner(parent);
}

ContextIndex::Match ContextIndex::match_end(std::span<int64_t> positions) const {
  if (end_ == begin_ || token(end_ - 1) == kGap) return {};
  const uint32_t leaf = slot(end_ - 1);
  const Node parent = links_[leaf].parent;
  const Node others = links_[leaf].next;  // the leaf is the newest child
  if (parent == root() || others == kNone) return {};
  return collect(others, true, inner(parent).depth, positions);
}

ContextIndex::Match ContextIndex::match(std::span<const int32_t> tokens, std::span<int64_t> positions) const {
  const int n = static_cast<int>(std::min(tokens.size(), size_t(kMaxContext)));
  const auto wanted = [&](int i) { return tokens[tokens.size() - 1 - i]; };
  Node node = root();
  int length = 0;
  while (length < n && length == depth(node)) {
    const Node next = child(node, wanted(length));
    if (next == kNone) break;
    const uint32_t other = newest(next);
    const int end = std::min(n, depth(next));
    ++length;
    while (length < end && tokens_[back(other, length)] == wanted(length)) ++length;
    node = next;
  }
  return length == 0 ? Match{} : collect(node, false, length, positions);
}

// The newest leaves below a node, or below it and its older siblings.
ContextIndex::Match ContextIndex::collect(Node from, bool with_siblings, int length,
                                          std::span<int64_t> positions) const {
  // Disjoint subtrees, sorted by newest leaf, oldest first: the last subtree has the next position.
  struct Pending {
    uint32_t rank;
    Node node;
    bool with_siblings;
  };
  constexpr size_t kMaxPending = 64;
  std::array<Pending, kMaxPending> pending;
  LB_ASSERT(positions.size() <= kMaxPending);
  size_t n_pending = 0;
  Match match{.length = length, .n = 0};
  const auto push = [&](Node node, bool siblings) {
    if (node == kNone) return;
    const Pending item{age_rank(newest(node)), node, siblings};
    const size_t room = positions.size() - match.n;
    if (n_pending >= room) {  // more subtrees than positions requested: drop the oldest
      if (item.rank < pending[0].rank) return;
      std::copy(pending.begin() + 1, pending.begin() + n_pending, pending.begin());
      --n_pending;
    }
    size_t i = n_pending++;
    for (; i > 0 && pending[i - 1].rank > item.rank; --i) pending[i] = pending[i - 1];
    pending[i] = item;
  };
  if (!positions.empty()) push(from, with_siblings);
  while (n_pending > 0) {
    const Pending top = pending[--n_pending];
    positions[match.n++] = begin_ + top.rank;
    if (match.n == static_cast<int>(positions.size())) break;
    if (top.with_siblings) push(links_[top.node].next, true);
    for (Node node = top.node; !is_leaf(node);) {
      node = inner(node).first;
      push(links_[node].next, true);
    }
  }
  return match;
}

// --- nodes

ContextIndex::Node ContextIndex::new_inner(int depth) {
  Node node = unused_;
  if (node == kNone) {
    LB_ASSERT(n_inner_ <= capacity_);
    node = capacity_ + n_inner_++;
  } else {
    unused_ = inner(node).first;
  }
  inner(node) = {.first = kNone, .newest = 0, .depth = depth};
  return node;
}

void ContextIndex::free_inner(Node node) {
  inner(node).first = unused_;
  unused_ = node;
}

void ContextIndex::push_front(Node parent, Node child) {
  Inner& at = inner(parent);
  Link& link = links_[child];
  link.parent = parent, link.prev = kNone, link.next = at.first;
  if (at.first != kNone) links_[at.first].prev = child;
  at.first = child;
}

void ContextIndex::unlink(Node child) {
  const Link& link = links_[child];
  (link.prev == kNone ? inner(link.parent).first : links_[link.prev].next) = link.next;
  if (link.next != kNone) links_[link.next].prev = link.prev;
}

void ContextIndex::attach(Node parent, Node child, int32_t token) {
  push_front(parent, child);
  links_[child].token = token;
  if (has_edges(parent)) add_edge(child);
}

// --- edges: linear probing

size_t ContextIndex::home(Node parent, int32_t token) const {
  uint64_t key = (uint64_t(parent) << 32 | uint32_t(token)) * 0x9e3779b97f4a7c15u;  // golden ratio
  key = (key ^ key >> 32) * 0xd6e8feb86659fd93u;                                    // a 64-bit mixer
  return static_cast<size_t>((key >> 32) * n_edges_ >> 32);
}

size_t ContextIndex::find_edge(Node parent, int32_t token) const {
  size_t at = home(parent, token);
  while (edges_[at] != 0) {
    const Link& link = links_[edges_[at] - 1];
    if (link.parent == parent && link.token == token) break;
    if (++at == n_edges_) at = 0;
  }
  return at;
}

ContextIndex::Node ContextIndex::child(Node parent, int32_t token) const {
  const Node found = edges_[find_edge(parent, token)];
  return found == 0 ? kNone : found - 1;
}

void ContextIndex::add_edge(Node child) { edges_[find_edge(links_[child].parent, links_[child].token)] = child + 1; }

void ContextIndex::replace(Node old, Node with) {
  edges_[find_edge(links_[old].parent, links_[old].token)] = with + 1;
  links_[with].parent = links_[old].parent;
}

void ContextIndex::remove_edge(Node child) {
  size_t hole = find_edge(links_[child].parent, links_[child].token);
  LB_ASSERT(edges_[hole] == child + 1);
  // Backward-shift deletion: moves later entries of the probe sequence into the hole where allowed.
  for (size_t at = hole;;) {
    if (++at == n_edges_) at = 0;
    if (edges_[at] == 0) break;
    const Link& link = links_[edges_[at] - 1];
    const size_t start = home(link.parent, link.token);
    const bool may_move = hole <= at ? start <= hole || start > at : start <= hole && start > at;
    if (!may_move) continue;
    edges_[hole] = edges_[at];
    hole = at;
  }
  edges_[hole] = 0;
}

}  // namespace lb
