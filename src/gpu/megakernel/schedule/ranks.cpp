// Records the exchanges between the ranks of a model that is split by tensors: the product before one sends its rows.
#include "gpu/megakernel/schedule/geometry.h"
#include "gpu/megakernel/schedule/schedule.h"

namespace lb::gpu {

// Takes back the product that was recorded last, which makes the n exchanged values.
Schedule::Node Schedule::take_rows(const float* y, long n, int n_ranks) {
  require(target_.vendor != "amd", "takes no ranks on AMD");
  LB_ASSERT(n_ranks > 1 && (n_ranks_ == 1 || n_ranks_ == n_ranks));
  n_ranks_ = n_ranks;
  require(!nodes_.empty() && nodes_.back().task.kind == TaskKind::kProduct, "exchanges rows of products only");
  Node node = std::move(nodes_.back());
  nodes_.pop_back();
  const Linear& op = node.task.product.op;
  require(op.y == y && op.n_out == n && op.add == nullptr && node.task.product.up == nullptr,
          "exchanges all rows of one product");
  node.phase = 0;
  return node;
}

void Schedule::run(const AllReduce& op) {
  Node node = take_rows(op.x, op.count, op.ranks.n);
  ProductTask& product = node.task.product;
  product.rows_of = RowsOf::kShares;
  product.peers_at = shares_at(n_sums_++ % kShareSets, n_ranks_, 0, product.op.n_out);
  product.op.add = op.add;
  product.op.y = op.y;
  const size_t bytes = size_t(op.count) * sizeof(float);
  if (op.add != nullptr) node.reads.push_back({op.add, bytes});
  node.writes = {{op.y, bytes}};
  add(std::move(node));
}

void Schedule::run(const AllGather& op) {
  require(op.rows == 1, "takes one row at a time");
  const int rank = op.ranks.rank;
  Node node = take_rows(op.x, op.widths[rank], op.ranks.n);
  ProductTask& product = node.task.product;
  product.rows_of = RowsOf::kLogits;
  product.peers_at = 0;
  for (int i = 0; i < rank; ++i) product.peers_at += op.widths[i];
  product.op.y = op.y + product.peers_at;
  node.writes = {{product.op.y, size_t(product.op.n_out) * sizeof(float)}};
  add(std::move(node));
}

// The words of the shares, which are the first of MegaRanks::words.
int Schedule::sums_words() const {
  int n_out = 0;
  for (const Node& node : nodes_)
    if (node.task.kind == TaskKind::kProduct && node.task.product.rows_of == RowsOf::kShares)
      n_out = std::max(n_out, node.task.product.op.n_out);
  return shares_at(kShareSets, n_ranks_, 0, n_out);
}

}  // namespace lb::gpu
