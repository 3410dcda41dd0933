// Counts and moves the weights of any network.
#include "models/network.h"

#include <algorithm>

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

const void* const* Network::carve_planes(Carver& carver, const NetworkPart& part, const CopyMatrix& copy,
                                         Stream* stream) {
  const auto move_matrix = [&](Matrix& m) {
    std::byte* to = carver.take<std::byte>(quant::checked_plane_layout(m.type, m.n_out, m.n_in).bytes);
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
  visit({move_matrix, move_array, part});
  const void** table = carver.take<const void*>(n_slots_);
  if (table == nullptr) return nullptr;
  const std::vector<const void*> by_slot = addresses(part);
  stream->upload(table, by_slot.data(), by_slot.size() * sizeof(void*));
  return table;
}

}  // namespace lb
