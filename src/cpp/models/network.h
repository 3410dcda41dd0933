// Network: a backend's view of a model or a draft model: the weights to copy, and the sizes that plans depend on.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "base/memory.h"
#include "ops/experts.h"
#include "ops/stream.h"
#include "state/sequence_state.h"
#include "weights/binder.h"

namespace lb {

// Query heads of a network's attention layers, which all have the same shape.
struct AttentionSizes {
  int n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int key_tail = 0;  // KvLayer
};

// Experts that a row of a mixture chooses, the dimensions of their networks, and the experts of a layer; 0 without a
// mixture.
struct ExpertProducts {
  int used = 0, dim = 0, ffn = 0, n = 0;
};

// The part of a network on one shard: layers of the range. The first part also has the embedding, the last part the
// final norm and the head. Draft models are never divided: they are on the last part, whose range then has their layers
// too, or on a device of their own.
struct NetworkPart {
  int rank = 0, n = 1;  // this part; all parts
  LayerRange layers{};
  bool has_target = true;  // false: a draft model's shard, with the target's embedding, final norm and head alone
  bool has_draft = true;   // false: there is no draft model, or it is on another shard

  bool is_first() const { return rank == 0; }
  bool is_last() const { return rank == n - 1; }
};

// Visits the references to weights, so that a visitor can move the weights.
struct WeightVisitor {
  std::function<void(Matrix&)> matrix;
  std::function<const void*(const void* at, size_t bytes)> array;  // returns the array's new address
  NetworkPart part{};                                              // weights of other parts are not visited
  std::function<void(ExpertSlots&)> slots;  // of a layer's experts, after its matrices; none: not visited

  template <class T>
  void operator()(const T*& at, size_t n) const {
    at = static_cast<const T*>(array(at, n * sizeof(T)));
  }
};

class Network {
 public:
  virtual ~Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  std::span<const LayerShape> layer_shapes() const { return layer_shapes_; }  // what each layer keeps between steps
  const AttentionSizes& attention() const { return attention_; }
  // Copies that the binder made, in host memory: vectors as fp32, and matrices that no op reads as the file has them.
  size_t vector_bytes() const { return copies_.vector_bytes; }
  size_t copied_bytes() const { return copies_.matrix_bytes; }
  // Fills these matrices. Call before anything reads them.
  void fill_copies(int n_threads, const std::function<void(size_t, size_t)>& progress) {
    copies_.fill(n_threads, progress);
  }
  // Frees all copies, once a device has its own.
  void release_copies() { copies_ = {}; }
  // Leaves room for this many experts of each layer on the device, the others stay in host memory; 0: all experts. Call
  // before planning for a device.
  void set_expert_slots(int slots);
  int expert_slots() const { return expert_slots_; }
  // Visits the slots of each layer's experts; those without experts in host memory, too.
  void for_each_expert_layer(const std::function<void(ExpertSlots&)>& slots);
  // How often the experts of each layer were chosen; no layers if all experts are in device memory.
  std::vector<std::vector<uint64_t>> expert_uses(Stream& stream);
  // Copies the experts that were used most to the slots, where expert_uses() then continues. uses: of the first layers.
  // No pass may be in flight.
  void arrange_experts(std::span<const std::vector<uint64_t>> uses, Stream& stream);
  // Planes of one expert of every layer, and of all experts.
  size_t expert_bytes();
  size_t largest_expert_bytes();  // of a layer
  size_t all_expert_bytes();
  // Switches ops and sizes to the types in which a device will hold the matrices. Call before planning for a device.
  void use_device_types();
  // Matrices in the types that ops read, and vectors.
  size_t weight_bytes() const { return weight_bytes_; }
  // Address of each matrix of a part, by slot (WeightStore).
  std::vector<const void*> addresses(const NetworkPart& part = {});
  int max_n_in() const { return max_n_in_; }  // the largest n_in of any product
  const ExpertProducts& expert_products() const { return expert_products_; }

  void for_each_matrix(const std::function<void(const Matrix&)>& matrix);
  // Calls `group` with each set of matrices that multiply the same x.
  using Group = std::initializer_list<const Matrix*>;
  using GroupVisitor = std::function<void(Group)>;
  virtual void for_each_group(const GroupVisitor& group) const = 0;

  // Carves room for the weights of a part, matrices as planes (quant/planes.h). A carver without memory only counts.
  // Otherwise `copy` converts each matrix, experts to slots and host memory, `stream` uploads the arrays, and from then
  // on the network points to the copies. Returns the table of addresses(); null if the carver only counts.
  using CopyMatrix = std::function<void(std::byte* to, Matrix& from)>;
  // experts: carves the experts' slots and their state.
  const void* const* carve_planes(Carver& carver, Carver& experts, const NetworkPart& part, const CopyMatrix& copy,
                                  Stream* stream);

 protected:
  Network() = default;
  // Visits each matrix and array once.
  virtual void visit(const WeightVisitor& visitor) = 0;
  // The last call of a derived constructor: counts the weights.
  void finish(std::vector<LayerShape> layer_shapes, const AttentionSizes& attention, HostCopies copies,
              const ExpertProducts& expert_products = {});

 private:
  std::vector<LayerShape> layer_shapes_;
  AttentionSizes attention_;
  ExpertProducts expert_products_;
  HostCopies copies_;
  size_t weight_bytes_ = 0;
  int max_n_in_ = 0, n_slots_ = 0, expert_slots_ = 0;
};

}  // namespace lb
