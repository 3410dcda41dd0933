// Counts and moves the weights of any network.
#include "models/network.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "quant/repack.h"

namespace lb {

void Network::finish(std::vector<LayerShape> layer_shapes, const AttentionSizes& attention, HostCopies copies,
                     const ExpertProducts& expert_products) {
  expert_products_ = expert_products;
  layer_shapes_ = std::move(layer_shapes);
  attention_ = attention;
  copies_ = std::move(copies);
  weight_bytes_ = copies_.vector_bytes;
  const auto count = [&](Matrix& m) {
    weight_bytes_ += m.bytes();
    max_n_in_ = std::max(max_n_in_, m.n_in);
    m.slot = n_slots_++;
  };
  visit({count, [](const void* at, size_t) { return at; }, {}});
}

void Network::for_each_matrix(const std::function<void(const Matrix&)>& matrix) {
  visit({[&](Matrix& m) { matrix(m); }, [](const void* at, size_t) { return at; }, {}});
}

std::vector<const void*> Network::addresses(const NetworkPart& part) {
  std::vector<const void*> by_slot(n_slots_);
  visit({[&](Matrix& m) { by_slot[m.slot] = m.data; }, [](const void* at, size_t) { return at; }, part});
  return by_slot;
}

void Network::use_device_types() {
  const auto change = [&](Matrix& m) {
    weight_bytes_ -= m.bytes();
    m.type = quant::device_type(m.block_type);
    weight_bytes_ += m.bytes();
  };
  visit({change, [](const void* at, size_t) { return at; }, {}});
}

void Network::set_expert_slots(int slots) {
  expert_slots_ = slots;
  const auto change = [&](Matrix& m) { m.expert_slots = m.n_experts > 0 ? slots : 0; };
  visit({change, [](const void* at, size_t) { return at; }, {}});
}

void Network::for_each_expert_layer(const std::function<void(ExpertSlots&)>& slots) {
  WeightVisitor visitor{[](Matrix&) {}, [](const void* at, size_t) { return at; }};
  visitor.slots = slots;
  visit(visitor);
}

std::vector<std::vector<uint64_t>> Network::expert_uses(Stream& stream) {
  std::vector<std::vector<uint64_t>> uses;
  for_each_expert_layer([&](ExpertSlots& slots) {
    if (slots.cache == nullptr) return;
    const auto cache = std::make_unique<ExpertCache>();
    stream.download(cache.get(), slots.cache, sizeof *cache);
    uses.emplace_back(cache->chosen, cache->chosen + expert_products_.n);
  });
  return uses;
}

namespace {

// Exchanges the experts of a layer's slots for those used most; ties go to the lower index.
void arrange_layer(const ExpertSlots& slots, std::span<Matrix* const> matrices, const std::vector<uint64_t>& uses,
                   Stream& stream) {
  const auto cache = std::make_unique<ExpertCache>();
  stream.download(cache.get(), slots.cache, sizeof *cache);
  const int n = static_cast<int>(uses.size());
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) { return uses[a] > uses[b]; });
  std::vector<int> leaving, arriving;
  for (int i = 0; i < n; ++i) {
    const bool is_there = cache->slots[order[i]] >= 0;
    if (i < slots.n && !is_there) arriving.push_back(order[i]);
    if (i >= slots.n && is_there) leaving.push_back(order[i]);
  }
  LB_ASSERT(leaving.size() == arriving.size());
  for (size_t i = 0; i < leaving.size(); ++i) {
    const int slot = std::exchange(cache->slots[leaving[i]], -1), expert = arriving[i];
    cache->slots[expert] = slot;
    for (const Matrix* m : matrices) {
      const size_t rows = m->n_out / m->n_experts;
      const quant::PlaneLayout all = quant::plane_layout(m->type, m->n_out, m->n_in),
                               held = quant::plane_layout(m->type, m->rows_on_device(), m->n_in);
      for (int plane = 0; plane < all.n_planes; ++plane) {
        const size_t bytes = rows * all.row_bytes[plane];
        auto* const to = static_cast<std::byte*>(const_cast<void*>(m->data)) + held.offset[plane] + slot * bytes;
        stream.upload(to, m->host_experts + all.offset[plane] + expert * bytes, bytes);
      }
    }
  }
  const double total = std::accumulate(uses.begin(), uses.end(), 0.0);
  for (int e = 0; e < n; ++e) {
    cache->chosen[e] = uses[e];
    cache->uses[e] = total > 0 ? static_cast<uint32_t>(double(uses[e]) / total * kPassUses) : 0;
  }
  stream.upload(slots.cache, cache.get(), sizeof *cache);
}

}  // namespace

void Network::arrange_experts(std::span<const std::vector<uint64_t>> uses, Stream& stream) {
  size_t layer = 0;
  std::vector<Matrix*> matrices;
  WeightVisitor visitor{[&](Matrix& m) {
                          if (m.expert_slots > 0) matrices.push_back(&m);
                        },
                        [](const void* at, size_t) { return at; }};
  visitor.slots = [&](ExpertSlots& slots) {
    const std::vector<Matrix*> own = std::exchange(matrices, {});
    if (slots.cache == nullptr || layer == uses.size()) return;
    LB_CHECK(std::ssize(uses[layer]) == expert_products_.n, kInvalid, "uses of ", uses[layer].size(),
             " experts in layer ", layer, ", which has ", expert_products_.n);
    arrange_layer(slots, own, uses[layer++], stream);
  };
  visit(visitor);
  stream.wait();
}

size_t Network::expert_bytes() {
  size_t bytes = 0;
  for_each_matrix([&](const Matrix& m) {
    if (m.n_experts > 0) bytes += quant::checked_plane_layout(m.type, m.n_out / m.n_experts, m.n_in).bytes;
  });
  return bytes;
}

size_t Network::largest_expert_bytes() {
  size_t layer = 0, largest = 0;
  WeightVisitor visitor{[&](Matrix& m) {
                          if (m.n_experts > 0)
                            layer += quant::checked_plane_layout(m.type, m.n_out / m.n_experts, m.n_in).bytes;
                        },
                        [](const void* at, size_t) { return at; }};
  visitor.slots = [&](ExpertSlots&) { largest = std::max(largest, std::exchange(layer, 0)); };
  visit(visitor);
  return largest;
}

size_t Network::all_expert_bytes() {
  size_t bytes = 0;
  for_each_matrix([&](const Matrix& m) {
    if (m.n_experts > 0) bytes += quant::checked_plane_layout(m.type, m.n_out, m.n_in).bytes;
  });
  return bytes;
}

const void* const* Network::carve_planes(Carver& carver, Carver& experts, const NetworkPart& part,
                                         const CopyMatrix& copy, Stream* stream) {
  const auto move_matrix = [&](Matrix& m) {
    const size_t bytes = quant::checked_plane_layout(m.type, m.rows_on_device(), m.n_in).bytes;
    std::byte* to = (m.expert_slots > 0 ? experts : carver).take<std::byte>(bytes);
    if (to == nullptr) return;
    LB_ASSERT(m.layout == WeightLayout::kBlocks && m.type == quant::device_type(m.block_type));
    copy(to, m);
    m.data = to;
    m.layout = WeightLayout::kPlanes;
  };
  const auto move_array = [&](const void* at, size_t bytes) -> const void* {
    std::byte* to = carver.take<std::byte>(bytes);
    if (to == nullptr || at == nullptr) return at;
    stream->upload(to, at, bytes);
    return to;
  };
  const auto make_cache = [&](ExpertSlots& slots) {
    slots.cache = experts.take<ExpertCache>(1);
    if (slots.cache == nullptr) return;
    ExpertCache first = {};
    for (int e = 0; e < kMaxExperts; ++e) first.slots[e] = e < expert_slots_ ? e : -1;
    stream->upload(slots.cache, &first, sizeof first);
    slots.n = expert_slots_;
  };
  WeightVisitor visitor{move_matrix, move_array, part};
  if (expert_slots_ > 0) visitor.slots = make_cache;
  visit(visitor);
  const void** table = carver.take<const void*>(n_slots_);
  if (table == nullptr) return nullptr;
  const std::vector<const void*> by_slot = addresses(part);
  stream->upload(table, by_slot.data(), by_slot.size() * sizeof(void*));
  return table;
}

}  // namespace lb
