// Plans mailboxes: which values travel through them, and where they are.
//
// Embedding, products, recurrences and attentions pass their values through mailboxes. Such values no longer count as
// reads and writes of a node, so they need no barrier.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "gpu/megakernel/schedule/geometry.h"
#include "gpu/megakernel/schedule/schedule.h"

namespace lb::gpu {
namespace {

// Number of mailboxes that a task fills, usually one per value.
int n_mailboxes_of(const Task& task) {
  switch (task.kind) {
    case TaskKind::kEmbed: return mailbox_length(task.embed.op.dim);
    case TaskKind::kProduct:
    case TaskKind::kExpertActs:
    case TaskKind::kExpertSums: return mailbox_length(product_of(task)->op.n_out);
    case TaskKind::kDeltaStep: return squares_at(task.delta) + task.delta.n_units;
    case TaskKind::kAttentionSplits: return split_sums_at(task.attention, task.attention.op.n_heads, 0);
    case TaskKind::kAttentionMerge: return mailbox_length(task.attention.op.n_heads * task.attention.op.cache.head_dim);
    default: return 0;
  }
}

}  // namespace

// The last node before `before` that writes to `at`; -1: none.
int Schedule::writer_of(const void* at, int before) const {
  for (int i = before - 1; i >= 0; --i)
    if (overlap({{at, 1}}, nodes_[i].writes)) return i;
  return -1;
}

// The address that a node's values would have without mailboxes; null: no other node reads them.
const void* Schedule::made_at(const Node& node) const {
  switch (node.task.kind) {
    case TaskKind::kEmbed: return node.task.embed.op.y;
    case TaskKind::kProduct:
    case TaskKind::kExpertActs:
    case TaskKind::kExpertSums: return product_of(node.task)->op.y;
    case TaskKind::kDeltaStep: return node.task.delta.step.o;
    case TaskKind::kAttentionSplits: return splits_->data();
    case TaskKind::kAttentionMerge: return node.task.attention.op.o;
    default: return nullptr;
  }
}

// The mailboxes of each node, and their readers. Writers are looked up among the nodes as recorded, while reads and
// writes that mailboxes replace are removed from copies of the nodes.
struct Schedule::MailboxPlan {
  const Schedule& schedule;
  std::vector<Node> nodes;
  int n_mailboxes = 0;
  std::vector<int> at;             // first mailbox of each node; -1: none
  std::vector<bool> is_read;       // some node reads the values from the mailboxes
  std::vector<bool> is_plain_too;  // some node reads the values from plain memory

  explicit MailboxPlan(const Schedule& of)
      : schedule(of), nodes(of.nodes_), at(nodes.size(), -1), is_read(nodes.size()), is_plain_too(nodes.size()) {}

  const Node& recorded(int i) const { return schedule.nodes_[i]; }
  bool has_mailboxes(int i) const { return i >= 0 && schedule.made_at(recorded(i)) != nullptr; }
  static void drop(std::vector<Range>& ranges, const void* begin) {
    std::erase_if(ranges, [&](const Range& r) { return r.begin == begin; });
  }

  void lay_out();
  void take(int reader, MailboxSource& from, const void* plain, int* first = nullptr);
  MailboxSource squares_of(int writer) const;
  void connect(int i);
  void connect_delta(int i);
  void connect_experts(int i);
  void drop_writes();
};

// Double-buffered: a vector alternates between two sets of mailboxes. A set is overwritten two products later at the
// earliest, and each product needs all values that the earlier readers have computed.
void Schedule::MailboxPlan::lay_out() {
  struct Set {
    int at = 0, size = 0;
  };
  std::map<std::pair<const void*, int>, Set> sets;  // key: a vector's address without mailboxes, and its turn
  std::map<const void*, int> turns;
  for (size_t i = 0; i < nodes.size(); ++i) {  // in write order, so that turns alternate
    if (!has_mailboxes(int(i))) continue;
    const void* to = schedule.made_at(recorded(int(i)));
    const int length = n_mailboxes_of(recorded(int(i)).task);
    Set& set = sets[{to, turns[to]++ % 2}];
    if (set.size < length) {
      set = {n_mailboxes, length};
      n_mailboxes += round_up(length, 16);
    }
    at[i] = set.at;
  }
}

// Makes the reader read `plain` from its writer's mailboxes, if the writer has some. *first receives the offset in the
// writer's vector; if `first` is null, the offset must be 0.
void Schedule::MailboxPlan::take(int reader, MailboxSource& from, const void* plain, int* first) {
  const int writer = plain == nullptr ? -1 : schedule.writer_of(plain, reader);
  if (!has_mailboxes(writer)) return;
  is_read[writer] = true;
  drop(nodes[reader].reads, plain);
  from = {int32_t(at[writer]), recorded(writer).phase};
  const void* made = schedule.made_at(recorded(writer));
  const long offset = static_cast<const float*>(plain) - static_cast<const float*>(made);
  require(offset == 0 || first != nullptr, "takes vectors from their begin");
  if (first != nullptr) *first = static_cast<int>(offset);
}

MailboxSource Schedule::MailboxPlan::squares_of(int writer) const {
  return {at[writer] + squares_at(recorded(writer).task.delta), recorded(writer).phase};
}

// Connects the step and the commit of a recurrence.
void Schedule::MailboxPlan::connect_delta(int i) {
  Node& node = nodes[i];
  DeltaTask& d = node.task.delta;
  take(i, d.x_mailbox, d.conv.x);
  take(i, d.g_mailbox, d.prepare.g);
  take(i, d.beta_mailbox, d.prepare.beta);
  require(d.x_mailbox.at >= 0 && d.g_mailbox.at >= 0 && d.beta_mailbox.at >= 0, "takes a recurrence of products");
  const int step = node.task.kind == TaskKind::kDeltaStep ? i : schedule.writer_of(d.step.o, i);
  d.squares = squares_of(step);
  d.n_units = recorded(step).task.delta.n_units;
  if (step == i) {
    take(i, d.z_mailbox, d.z);
    require(d.z_mailbox.at >= 0, "takes a recurrence that is gated by a product");
    d.y_mailbox = {at[i], node.phase};
  } else {
    node.writes.clear();  // the commit waits for the squares, which the readers of the overwritten values send
  }
}

void Schedule::MailboxPlan::connect_experts(int i) {
  ExpertTask& e = nodes[i].task.experts;
  take(i, e.product.a_mailbox, e.product.a);
  take(i, e.logits_mailbox, e.logits);
  require(e.product.a_mailbox.at >= 0 && e.logits_mailbox.at >= 0, "takes experts of a row of products");
  if (e.product.op.add == nullptr) return;
  take(i, e.product.add_mailbox, e.product.op.add);
  take(i, e.shared_mailbox, e.shared);
  take(i, e.shared_gate_mailbox, e.shared_gate);
  require(e.product.add_mailbox.at >= 0 && (e.shared == nullptr) == (e.shared_mailbox.at < 0) &&
              (e.shared == nullptr) == (e.shared_gate_mailbox.at < 0),
          "takes a mixture that is added to a row of products");
}

// Sets the mailboxes of a node's task and of its inputs.
void Schedule::MailboxPlan::connect(int i) {
  Node& node = nodes[i];
  switch (node.task.kind) {
    case TaskKind::kProduct: {
      ProductTask& p = node.task.product;
      take(i, p.a_mailbox, p.a);
      take(i, p.add_mailbox, p.op.add);
      if (p.from == XFrom::kHeads || p.from == XFrom::kHeadsCodes) p.squares = squares_of(schedule.writer_of(p.a, i));
      break;
    }
    case TaskKind::kExpertActs:
    case TaskKind::kExpertSums: connect_experts(i); break;
    case TaskKind::kDeltaStep:
    case TaskKind::kDeltaCommit: connect_delta(i); break;
    case TaskKind::kAttentionSplits: {
      SplitTask& a = node.task.attention;
      take(i, a.u_mailbox, a.prepare.u);
      take(i, a.k_mailbox, a.prepare.k);
      take(i, a.v_mailbox, a.prepare.v);
      require(a.u_mailbox.at >= 0 && a.k_mailbox.at >= 0 && a.v_mailbox.at >= 0, "takes an attention of products");
      a.split_mailbox = {at[i], node.phase};
      break;
    }
    case TaskKind::kEmbed: node.task.embed.y_mailbox = at[i]; break;
    case TaskKind::kAttentionMerge: {
      SplitTask& a = node.task.attention;
      take(i, a.gate_mailbox, a.op.gate, &a.gate_at);
      require(a.op.gate == nullptr || a.gate_mailbox.at >= 0, "takes an attention that is gated by a product");
      take(i, a.split_mailbox, schedule.splits_->data());
      a.y_mailbox = at[i];
      break;
    }
    default: break;
  }
  for (const Range& read : node.reads) {
    const int writer = schedule.writer_of(read.begin, i);
    if (has_mailboxes(writer)) is_plain_too[writer] = true;
  }
}

// Drops plain writes that no node reads. The last product, the head, stays plain.
void Schedule::MailboxPlan::drop_writes() {
  const int n = int(nodes.size());
  for (int i = 0; i < n; ++i) {
    Node& node = nodes[i];
    if (product_of(node.task) == nullptr) {
      const void* made = schedule.made_at(node);
      if (made == nullptr) continue;
      require(!is_plain_too[i], "takes an embedding, a recurrence or an attention that products read");
      drop(node.writes, made);
      continue;
    }
    ProductTask& p = *product_of(node.task);
    p.y_mailbox = is_read[i] ? at[i] : -1;
    p.writes_y = i + 1 == n || is_plain_too[i] || node.kept != nullptr;
    // Such a product counts as finished before its sums are there.
    require(p.rows_of != RowsOf::kShares || !is_plain_too[i], "takes sums over ranks that travel in mailboxes");
    if (!p.writes_y) drop(node.writes, p.op.y);
    if (node.kept == nullptr) continue;
    require(i + 1 < n && !is_plain_too[i], "keeps only values that travel in mailboxes");
    drop(node.writes, p.op.y);  // no step reads the ring
    p.op.y = node.kept;
  }
}

int Schedule::plan_mailboxes() {
  MailboxPlan plan(*this);
  plan.lay_out();
  for (size_t i = 0; i < nodes_.size(); ++i) plan.connect(int(i));
  plan.drop_writes();
  nodes_ = std::move(plan.nodes);
  return plan.n_mailboxes;
}

}  // namespace lb::gpu
