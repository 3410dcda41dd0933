// The schedule of a megakernel: a whole decode step as tasks in phases. The contract of host and device.
//
// Every block has its own list of steps, at least one per phase. A task reads values of earlier phases, mostly from
// mailboxes. If it reads plain memory, its block first waits until all blocks have arrived at the end of the previous
// phase.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gpu/gemv/shape.h"
#include "ops/all_reduce.h"
#include "ops/attention.h"
#include "ops/delta_net.h"
#include "ops/embed.h"
#include "ops/experts.h"
#include "ops/linear.h"
#include "ops/next_token.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/sample.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace lb::gpu {

inline constexpr int kMegaThreads = 256;
inline constexpr int kMegaHelpers = 64;  // helper threads: the weight-copying warp and the epilogue warp
inline constexpr int kMegaChunks = 32;   // max chunks in the weight ring
inline constexpr int kStreamChunks = 32 / quant::kMaxPlanes;  // chunks per warp with one lane per plane
// Max chunks in flight. A block's other reads queue after these copies: over a microsecond per 16 KB.
inline constexpr int kMaxInFlight = 2;

// Rows of a product that a team of threads keeps in registers together.
LB_FN constexpr int max_batch_rows(bool is_plain) { return is_plain ? 8 : 4; }

// Split-K attention: a block computes one split of the context for up to kSplitQueries queries of a KV head.
inline constexpr int kSplitMaxDim = 256;                        // max head_dim
inline constexpr int kSplitMaxCount = 128, kSplitMinSlots = 8;  // max splits per head; min slots per split
inline constexpr int kSplitTile = 16;                           // slots per tile of K and V
inline constexpr int kSplitQueries = 6, kSplitRows = 8;         // kSplitRows: with padding; scored four at a time
static_assert(kSplitQueries + 2 <= kMegaThreads / 32, "each query, and the row's K and V, needs a warp to make it");

enum class TaskKind : uint32_t {
  kNothing,  // the block idles in this phase
  kEmbed,
  kRopeTable,
  kProduct,
  kAttentionSplits,
  kAttentionMerge,
  kDeltaStep,
  kDeltaCommit,
  kExpertActs,
  kExpertSums,
  kAdjust,  // the sampler's first step, on logits that the same block computed in the same phase; of ranks, a phase
            // later
  kSample,  // the sampler's other steps
};

// How a product derives its x from its input a. Every block recomputes the whole x.
enum class XFrom : int32_t {
  kPlain,       // x = a
  kRms,         // x = RmsNorm(a)
  kCodes,       // the writers quantised a: one mailbox per four codes, then one per scale of 32 values
  kHeads,       // x = GatedRmsNorm(a); the writers have applied the gate, the reader applies each head's factor
  kHeadsCodes,  // as kHeads, with a quantised as in kCodes
};

// A value passed from one phase to a later one, with a tag that tells when it is valid. The tag names phase and token,
// and only rises. A reader spins until the tag matches; no barrier is needed.
//   bits 0 to 31: the value, fp32     32 to 63: the tag
//
// A vector's mailboxes are in groups of 128. Within a group, the first two of every four values precede the other two.
// A warp that reads four values per lane therefore makes two loads of 512 contiguous bytes, and touches each cache line
// once. Codes are in plain order.
using Mailbox = uint64_t;
inline constexpr int kMailboxGroup = 128, kHalfGroup = kMailboxGroup / 2;
// Offset of value i from the vector's first mailbox.
LB_FN constexpr int mailbox_index(int i) { return (i & ~126) | (i >> 1 & 62) | (i << 5 & kHalfGroup); }
LB_FN constexpr int mailbox_length(int n) { return (n + kMailboxGroup - 1) / kMailboxGroup * kMailboxGroup; }

struct MailboxSource {
  int32_t at = -1;    // the vector's first mailbox in Mega::mailboxes; -1: the values are in plain memory
  int32_t phase = 0;  // the phase that fills them
};

// Meaning of a product's rows on a rank of a model that is split by tensors (ops/all_reduce.h).
enum class RowsOf : int32_t {
  kModel,   // the model's own rows: the model is on one device, or only this rank reads them
  kShares,  // shares of a sum over the ranks
  kLogits,  // some of the logits, of which every rank needs all
};

// The memory of all ranks into which each one stores: device memory, or pinned host memory where devices cannot reach
// each other. Words are mailboxes that other devices fill: for each of
// kShareSets sets a vector of shares per rank, then a flag per rank whose logits are complete, then whether another
// token follows.
struct MegaRanks {
  Mailbox* words[kMaxRanks];  // [MegaPlan::n_words]
  float* logits[kMaxRanks];   // [vocab], always device memory
  float* staged_logits;       // [vocab] of all ranks, in host memory; null: ranks store into each other's logits
  int rank, n;
};
// A rank sends a product's shares once it has all sums of the product before, for which every peer had to read all
// shares of the one before that. So two sets alternate.
inline constexpr int kShareSets = 2;
LB_FN constexpr int shares_at(int set, int n_ranks, int rank, int n_out) { return (set * n_ranks + rank) * n_out; }

struct EmbedTask {
  Embed op;
  int32_t y_mailbox;  // first mailbox of y; y has no plain copy
};

// y = op.w x (+ op.add), or y = silu(op.w x) * (up x). Part i of the task has rows_each rows, plus row_unit if i <
// more. If y is kept, it goes to row n_past & kept_mask of a ring, and op.y points into row 0.
struct ProductTask {
  Linear op;
  const float* a;  // [n_in]; the input from which x is derived
  const float* w;  // [n_in], weights of the norm
  MailboxSource a_mailbox, add_mailbox;
  MailboxSource squares;            // kHeads, kHeadsCodes: sums of squares, [heads, head_squares]
  int32_t y_mailbox;                // first mailbox of y, or -1
  uint32_t writes_y;                // 0: y goes only to mailboxes
  uint32_t writes_codes;            // 1: y goes to mailboxes as codes, for readers with XFrom::kCodes
  uint32_t kept_mask, kept_stride;  // ring rows - 1, values between ring rows; 0: y is not kept
  const void* up;                   // [n_out, n_in] of op's type, or null
  XFrom from;
  int heads, head_dim, head_squares;  // kHeads, kHeadsCodes
  uint32_t head_scales_step;          // division_step() of the scales per head
  float eps, mean_of;                 // mean_of: 1 / (number of normalised values)
  int row_threads;                    // threads of a team, which shares a weight row: a multiple of 32
  int n_teams;                        // teams per block
  uint32_t team_step;                 // a thread's team is thread * team_step / 2^20
  int batch_rows;                     // rows of a team in flight, a power of two; batch_rows of all teams form a chunk
  int pass_rows;                      // rows whose sums are in shared memory together: whole batches
  int n_pieces;                       // pieces per row
  int row_bytes[quant::kMaxPlanes];   // bytes per row of each plane
  int plane_at[quant::kMaxPlanes + 1];  // byte offset of each plane in a chunk; last entry: the chunk's size
  int rows_each, more;
  int row_unit;
  RowsOf rows_of;
  int32_t peers_at;  // kShares: first word of the ranks' shares; kLogits: the first row's index in the logits
};

// One plane of a weight chunk, as one lane of the copying warp sees it. Chunks are consecutive in the ring; a chunk
// that does not fit before the ring's end goes to its start. Fields are packed, so that a lane can load a copy long
// before it unpacks it. All byte counts are multiples of 16.
struct alignas(16) StreamCopy {
  const uint8_t* from;  // the first row, rounded down to 16 bytes
  uint32_t extent;      // bits 0 to 15: offset / 16 in dynamic shared memory; 16 to 31: bytes / 16
  uint32_t order;       // all planes: bits 0 to 5: reuse_distance; 6 to 9: max_in_flight; 10 to 15: n_parts
                        // this plane: bits 16 to 31: bytes / 16 of each part but the last
};
static_assert(sizeof(StreamCopy) == 16 && kMegaChunks < 64 && kMaxInFlight < 16);
LB_FN int offset_of(const StreamCopy& copy) { return int(copy.extent & 0xffff) * 16; }
LB_FN int bytes_of(const StreamCopy& copy) { return int(copy.extent >> 16) * 16; }
LB_FN int part_bytes_of(const StreamCopy& copy) { return int(copy.order >> 16) * 16; }
LB_FN uint32_t reuse_distance(uint32_t order) { return order & 63; }  // the chunk this many before must be empty first
LB_FN uint32_t max_in_flight(uint32_t order) { return order >> 6 & 15; }  // chunks of the product, including this one
LB_FN int n_parts(uint32_t order) { return int(order >> 10 & 63); }       // parts are copied one after another

// n / d for small n is n * division_step(d) / 2^20.
LB_FN constexpr uint32_t division_step(int d) { return uint32_t((1 << 20) + d - 1) / uint32_t(d); }
LB_FN constexpr int quotient(int n, uint32_t step) { return int(uint32_t(n) * step >> 20); }

// K and V of types that shared memory converts to f16. stages: 1, 2 or 4 tiles of 16 slots of K and V; 0: K and V have
// one type, which the tiles share. k_rotated, v_rotated: values per rotated group; 0: not rotated.
struct PackedKv {
  KvRowBytes k, v;
  int stages, k_rotated, v_rotated;
};

// Split-K attention of one row, in two tasks. kAttentionSplits: a softmax over each split of the context. A unit is one
// split for one tile of a KV head's queries. kAttentionMerge: one softmax over all splits. A unit is 4 * 2^quads_shift
// columns of a head. The projections arrive in mailboxes, and so do the splits' results: o, m (an exponent of 2) and l.
struct SplitTask {
  AttentionPrepare prepare;  // q is not written
  Attention op;
  int group, query_tiles, tile_queries;  // queries and query tiles per KV head; queries of a full tile
  int splits_shift;                      // log2 of the number of splits
  int slot_mask;                         // every split begins at a multiple of slot_mask + 1
  int n_units, n_merge_units;            // units of kAttentionSplits, units of kAttentionMerge
  int head_units;                        // merge units per head
  int quads_shift;
  uint32_t query_tiles_step, chunks_step, head_units_step;  // division steps; chunks are 64 columns
  MailboxSource u_mailbox, k_mailbox, v_mailbox, gate_mailbox, split_mailbox;
  int gate_at;        // index of the gates in the vector of gate_mailbox
  int32_t y_mailbox;  // first mailbox of o, [n_heads, head_dim]
  PackedKv packed;
};

// Layout of the splits' mailboxes: o as a vector of [n_merge_units, n_splits, columns of a unit], then pairs of m and
// l, [n_heads, n_splits].
LB_FN int split_columns(const SplitTask& p) { return 4 << p.quads_shift; }
LB_FN int split_at(const SplitTask& p, int head, int split, int column) {
  const int unit = column >> (p.quads_shift + 2);
  return ((head * p.head_units + unit) << p.splits_shift | split) * split_columns(p) +
         (column & (split_columns(p) - 1));
}
LB_FN int split_sums_at(const SplitTask& p, int head, int split) {
  return mailbox_length(p.n_merge_units * split_columns(p) << p.splits_shift) + 2 * (head << p.splits_shift | split);
}

// One row of a recurrent layer, in two tasks. kDeltaStep: from the projections to y = o silu(z) norm_w and the sums of
// o's squares, both in mailboxes. kDeltaCommit: updates the convolution's history and pending row, once all of o is
// complete.
//
// A unit of o is a slice of 16 columns of S or, if y is quantised, two slices: the 32 values of a scale. With n =
// n_v_heads dv, its mailboxes are y, as [n] values or as [n / 4] groups of four codes and [n / 32] scales; then
// [n_units] sums of squares.
struct DeltaTask {
  CausalConv conv;  // with kMegaTaps taps
  DeltaPrepare prepare;
  GatedDelta step;
  const float* z;       // [n_v_heads, dv], gates before silu
  const float* norm_w;  // [dv]
  MailboxSource x_mailbox, g_mailbox, beta_mailbox, z_mailbox, y_mailbox, squares;
  int unit_shift;  // a unit has 2^unit_shift slices; 1: y is quantised
  int n_units;
  int slices_each, more;      // part i has slices_each slices of S, plus a unit if i < more
  int team_slices;            // slices that a team holds together: 1, or a unit if a block has more slices than teams
  int team_shift;             // a slice has 2^team_shift warps, each with 32 rows of S
  uint32_t head_slices_step;  // division steps: slices per value head;
  uint32_t key_heads_step;    // value heads per key head, or key heads if heads are tiled
};

// Offset of the first sum of squares from y's first mailbox.
LB_FN int squares_at(const DeltaTask& p) {
  const int n = p.step.n_v_heads * p.step.dv;
  return p.unit_shift == 0 ? mailbox_length(n) : n / 4 + n / kRoundBlock;
}

// The experts that the router chose for the row, in two tasks. kExpertActs: silu(gate) up of every choice, [k, ffn].
// kExpertSums: y = add + (sum_j weights[j] down act[j] + sigmoid(shared_gate) shared). Every block repeats the router's
// choice from the logits and finds the chosen experts' rows by it.
struct ExpertTask {
  // As a product of all choices: gate and up, or down. Its x, y, rows per block and pieces; weights of no ring, no
  // teams.
  ProductTask product;
  GemvMatrix matrices[2];                      // of all experts: gate and up, or down
  int per_expert[2], first_row[2];             // rows of an expert, and the first row that is used
  const float *logits, *shared, *shared_gate;  // [n_experts], [dim] or null, [1] or null
  MailboxSource logits_mailbox, shared_mailbox, shared_gate_mailbox;
  int n_experts, k, ffn;
  int is_normalized;  // of RouteExperts
  int row_lanes;      // kExpertSums: lanes that share a row, a power of two
};

// How many tokens a launch may compute. The host raises `allowed` while the launch runs. It allows a token once it has
// taken the token before the last, so that it can still drop the tokens in flight.
struct TokenBudget {
  const uint32_t* allowed;  // [1] in host memory: *NextToken::ring.written may rise to this, modulo 2^32
  uint32_t* ended;          // [1] in host memory: *written at the launch's end, visible before *written reaches it
  uint32_t* keep_going;     // [1] in device memory, read by the blocks; 1: another token follows
};

// kAdjust: part i has rows_each candidates, plus one if i < more. kSample: runs on all blocks. A greedy choice needs
// only each block's likeliest token: its key in two mailboxes, high half first. Every rank chooses the token from all
// logits; the last one, whose results the host reads, decides for all whether another token follows.
struct SampleTask {
  SampleOnGrid sample;
  NextToken next;
  TokenBudget budget;
  int rows_each, more;
  MailboxSource best_mailbox;  // [blocks, 2]
  int32_t flags_at;            // the ranks' flags in MegaRanks::words; -1: the model is on one device
};

struct alignas(16) Task {
  TaskKind kind;
  union {
    EmbedTask embed;
    RopeTable rope;
    ProductTask product;
    SplitTask attention;
    DeltaTask delta;
    ExpertTask experts;
    SampleTask sample;
  };
};
static_assert(sizeof(Task) <= 512);

// Step of a block: part `part` of `n_parts` of a task, in a phase.
struct alignas(16) TaskStep {
  static constexpr uint16_t kWaits = 0x8000;         // the block first waits until all blocks have arrived
  static constexpr uint16_t kMakesRows = 0x4000;     // the task is a product
  static constexpr uint16_t kBeforeState = 0x2000;   // the block's next step is a kDeltaStep
  static constexpr uint16_t kBeforeAdjust = 0x1000;  // the block's next step is a kAdjust
  static constexpr uint16_t kPhase = 0x0fff;
  uint16_t task, part, n_parts, phase_bits;
  uint16_t n_chunks = 0, n_passes = 0;  // of a product with streamed weights: its chunks, and the passes of its sums
  uint16_t skews = 0;                   // bytes before the first row in each plane's copy, four bits per plane
  uint16_t arrives = 0;                 // phases at whose end the block arrives after this step; 0: it does not arrive
};
static_assert(sizeof(TaskStep) == 16);
LB_FN int phase_of(const TaskStep& step) { return step.phase_bits & TaskStep::kPhase; }
LB_FN bool waits(const TaskStep& step) { return (step.phase_bits & TaskStep::kWaits) != 0; }
LB_FN bool makes_rows(const TaskStep& step) { return (step.phase_bits & TaskStep::kMakesRows) != 0; }
LB_FN bool is_before_state(const TaskStep& step) { return (step.phase_bits & TaskStep::kBeforeState) != 0; }
LB_FN bool is_before_adjust(const TaskStep& step) { return (step.phase_bits & TaskStep::kBeforeAdjust) != 0; }

// In pinned host memory.
struct MegaReport {
  uint32_t stuck;  // 1 + the phase in which a block timed out; 0: none
};

// Time-stamps of a step, in nanoseconds of one clock: when it began, had its inputs, and was done.
struct StepTimes {
  uint64_t began, waited, done;
};

// Per-token numbers that every layer reads; each block keeps a copy in shared memory.
struct TokenNumbers {
  int32_t n_past, key_buffer, n_accepted;
  int32_t first_accepted;  // undefined if n_accepted is 0
};

// Layout of dynamic shared memory, in bytes.
struct MegaMemory {
  int steps_at, ring_at, ring_bytes;
};

// The kernel's parameters.
struct Mega {
  const Task* tasks;             // [n_tasks]
  const TaskStep* steps;         // [blocks, n_steps]
  const StreamCopy* streams;     // [blocks, n_streams, planes]: the chunks of a token in order of use
  const int32_t* stream_counts;  // [blocks]: chunks per token, without padding
  uint32_t* arrived;             // [1]: arrivals so far, modulo 2^32: every block arrives once per phase
  Mailbox* mailboxes;            // [MegaPlan::n_mailboxes]
  uint32_t first;                // *arrived at the start of the launch
  int n_steps, n_phases;
  int n_tokens;                // max tokens; the host may allow fewer
  const uint32_t* keep_going;  // [1], as in TokenBudget; null: n_tokens is 1
  int n_streams;               // a multiple of kStreamChunks
  MegaMemory memory;
  long timeout_ns;  // time-out of a wait for other blocks; below 2^32
  MegaReport* report;
  const MegaRanks* ranks;  // [1] in device memory; null: the model is on one device
  StepTimes* times;        // [blocks, n_steps] of the last token, in packs with Target::has_timeline; else null
};

// Dynamic shared memory, in order: two tasks, MegaState, WeightStream, RowSums of products, the pool (x of a product,
// or another task's scratch), the block's steps, the ring of weights.
inline constexpr int kMegaStaticBytes = 512;  // max static shared memory of a kernel
inline constexpr int kMegaMaxSteps = 1024;
inline constexpr int kMegaStateAt = 1024, kMegaStreamAt = 1152, kMegaSumsAt = 1920, kMegaPoolAt = 7424;
// A pass of a product is the rows whose sums are in shared memory together. kPassSums: max sums over all matrices and
// warps. kPassRows: one row per lane of the epilogue warp, or two rows if a part has kManyRows.
inline constexpr int kPassSums = 512, kPassRows = 32, kManyRows = 128;
// Rounded x: one byte per value, plus a scale and a sum per 32 values.
LB_FN constexpr size_t product_pool_bytes(int n_in, bool is_rounded) {
  return (is_rounded ? size_t(n_in) + size_t(n_in) / kRoundBlock * 8 : size_t(n_in) * 4) + 256;
}
// Experts: after x, the logits, the choice and its weights, two tiles of act(), and the warps' sums of squares.
inline constexpr size_t kExpertScratchBytes = 4 * (kMaxExperts + 2 * kMaxChosen + 2 * kRoundBlock + kMegaThreads / 32);
LB_FN constexpr size_t expert_scratch_at(int n_in, bool is_rounded) {
  return (product_pool_bytes(n_in, is_rounded) + 15) / 16 * 16;
}
// Padded against bank conflicts: rows of 16-bit values start in different banks, 16-byte aligned.
LB_FN constexpr int split_row_stride(int dim, int value_bytes) { return value_bytes == 2 ? dim + 8 : dim; }
LB_FN constexpr size_t split_pool_bytes(int dim, int value_bytes) {
  return size_t(4 * kSplitTile + kSplitRows) * split_row_stride(dim, value_bytes) * value_bytes +
         size_t(kSplitRows) * kSplitTile * 4;
}
// Converted slots: one tile, the row's own K and V, and packed tiles instead of the second tile. Four packed tiles of
// 4-bit types take about as much as two of Q8_0.
LB_FN constexpr size_t packed_tile_bytes(const PackedKv& kv) {
  return size_t(kSplitTile) * (kv.k.codes + kv.k.high + kv.k.scales + kv.v.codes + kv.v.high + kv.v.scales);
}
inline constexpr int kOwnSlotBytes = kSplitMaxDim * 4;
LB_FN constexpr size_t packed_pool_bytes(int dim, const PackedKv& kv) {
  return size_t(2 * kSplitTile + kSplitRows) * split_row_stride(dim, 2) * 2 + size_t(kSplitRows) * kSplitTile * 4 +
         2 * kOwnSlotBytes + kv.stages * packed_tile_bytes(kv);
}
inline constexpr size_t kMergePoolBytes = size_t(kMegaThreads / 32) * 128 * 4;
inline constexpr size_t kSamplePoolBytes = 1024;
// Pool of kDeltaStep. Per warp: sums over its rows of S (S^T k and S^T q of two slices of 16 columns, k.k, q.q, k.q).
// Per thread: the earlier inputs of three channels. Per team: a path.
inline constexpr int kStepSums = 68, kMegaTaps = 4;
inline constexpr size_t kDeltaPoolBytes = size_t(kMegaThreads / 32) * kStepSums * 4 +
                                          size_t(kMegaThreads) * 3 * (kMegaTaps - 1) * 4 +
                                          size_t(kMegaThreads / 32 + 1) * kMaxTree * 8;

}  // namespace lb::gpu
