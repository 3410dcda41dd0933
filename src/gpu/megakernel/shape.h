// The schedule of a megakernel: a whole decode step as tasks in phases, which device and host must agree on.
//
// Every block has its own list of steps, at least one in each phase. A step's task may read what tasks of earlier
// phases wrote, so a block waits, when it needs that, until all blocks have arrived at the end of the phase before.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/attention.h"
#include "ops/delta_net.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/next_token.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/sample.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace lb::gpu {

inline constexpr int kMegaThreads = 256;
inline constexpr int kMegaHelpers = 64;  // besides them: a warp that brings weights, one that takes sums away
inline constexpr int kMegaChunks = 32;   // of the weights' ring, at most
inline constexpr int kStreamChunks = 32 / quant::kMaxPlanes;  // of which a warp has a lane for each plane
// Chunks on their way at once: what else a block asks for waits behind them, a microsecond for each 16 KB and more.
inline constexpr int kMaxUnderWay = 2;

// Rows of a product that a team has in registers at once.
LB_FN constexpr int max_batch_rows(bool is_plain) { return is_plain ? 8 : 4; }

// Attention: splits of the context have at least kSplitMinSlots slots, which pass in tiles, and up to kSplitQueries
// queries of one KV head.
inline constexpr int kSplitMaxDim = 256;  // head_dim
inline constexpr int kSplitMaxCount = 128, kSplitMinSlots = 8;
inline constexpr int kSplitTile = 16, kSplitQueries = 6, kSplitRows = 8;  // queries are scored in fours
static_assert(kSplitQueries + 2 <= kMegaThreads / 32, "a warp makes a query, K or V");

enum class TaskKind : uint32_t {
  kNothing,  // a block without work in a phase
  kEmbed,
  kRopeTable,
  kProduct,
  kAttentionSplits,
  kAttentionMerge,
  kDeltaStep,
  kDeltaCommit,
  kAdjust,  // of the logits that the same block has made in the same phase
  kSample,
};

// What x of a product is made of, by every block that has rows of it.
enum class XFrom : int32_t {
  kPlain,       // a
  kRms,         // RmsNorm of a
  kCodes,       // a, rounded by who made it: a word for four codes each, then one for each run's scale
  kHeads,       // a GatedRmsNorm whose makers have gated: what each head's norm leaves is left to the reader
  kHeadsCodes,  // the same, rounded by its makers as kCodes is
};

// A value on its way from one phase to another, with a number that tells the phase and the token: whoever reads it
// spins until the number is right, so that nothing else has to be waited for. Numbers only rise.
//   bits 0 to 31: the value, fp32     32 to 63: the number
//
// A vector's words lie in groups of 128, in which the first two of each four values precede the other two: a warp that
// reads four a lane asks twice for 512 bytes in a row, and not for each line twice. Codes lie in their order.
using Mailbox = uint64_t;
inline constexpr int kMailboxGroup = 128, kHalfGroup = kMailboxGroup / 2;
LB_FN constexpr int mailbox_index(int i) { return (i & ~126) | (i >> 1 & 62) | (i << 5 & kHalfGroup); }
LB_FN constexpr int mailbox_length(int n) { return (n + kMailboxGroup - 1) / kMailboxGroup * kMailboxGroup; }

struct MailboxSource {
  int32_t at = -1;  // of the first in Mega::words; -1: none, the values were there at the barrier before
  int32_t phase = 0;
};

struct EmbedTask {
  Embed op;
  int32_t y_mailbox;  // at: y goes nowhere else
};

struct ProductTask {
  Linear op;
  const float* a;
  const float* w;  // of the norm
  MailboxSource a_mailbox, add_mailbox;
  MailboxSource squares;  // of kHeads and kHeadsCodes: sums of squares, head_squares words of each head
  int32_t y_mailbox;      // at, or -1
  uint32_t writes_y;      // 0: to words alone
  uint32_t writes_codes;  // to words, as XFrom::kCodes reads them
  const void* up;         // [n_out, n_in] of op's type, or null: y is silu(op.w x) times up x
  XFrom from;
  int heads, head_dim, head_squares;  // of kHeads and kHeadsCodes
  uint32_t head_scales_step;          // runs of a head
  float eps, mean_of;                 // 1 / the values that a norm is of
  int row_threads;                    // that share a weight row: a multiple of 32
  int n_teams;                        // of so many threads in a block
  uint32_t team_step;                 // thread / row_threads = thread * team_step / 2^20
  int batch_rows;                     // that a team has at once, a power of two: a chunk of the weights
  int pass_rows;                      // whose sums wait in shared memory at a time: whole batches
  int n_pieces;                       // of a row
  int row_bytes[quant::kMaxPlanes];
  int plane_at[quant::kMaxPlanes + 1];  // of each plane in a chunk; the last: the chunk's size
  int rows_each, more;                  // part i has rows_each rows, and row_unit more while i < more
  int row_unit;
};

// What a lane of the warp that brings a block's weights has of one of their chunks: of a plane. Chunks follow each
// other in a ring, at whose end one that does not fit is at the start instead. In words, so that nobody looks at what
// is loaded before it is needed. Bytes are multiples of 16.
struct alignas(16) StreamCopy {
  const uint8_t* from;  // the first row, rounded down to 16 bytes
  uint32_t extent;      // bits 0 to 15: to / 16, in dynamic shared memory; 16 to 31: bytes / 16
  uint32_t order;  // of all planes; bits 0 to 5: after; 6 to 9: under_way; 10 to 15: parts; of its own: from 16 on,
                   // bytes / 16 of each part but the last
};
static_assert(sizeof(StreamCopy) == 16 && kMegaChunks < 64 && kMaxUnderWay < 16);
LB_FN int place_of(const StreamCopy& copy) { return int(copy.extent & 0xffff) * 16; }
LB_FN int bytes_of(const StreamCopy& copy) { return int(copy.extent >> 16) * 16; }
LB_FN int part_bytes_of(const StreamCopy& copy) { return int(copy.order >> 16) * 16; }
LB_FN uint32_t after(uint32_t order) { return order & 63; }           // the chunk so far before has been given back
LB_FN uint32_t under_way(uint32_t order) { return order >> 6 & 15; }  // of the product's chunks, at most
LB_FN int n_parts(uint32_t order) { return int(order >> 10 & 63); }   // of a chunk, one after another

// n / d for small n, as n * division_step(d) / 2^20.
LB_FN constexpr uint32_t division_step(int d) { return uint32_t((1 << 20) + d - 1) / uint32_t(d); }
LB_FN constexpr int quotient(int n, uint32_t step) { return int(uint32_t(n) * step >> 20); }

// One row, from the projections to o, in two tasks: a softmax over each split of the context, then of all. A unit of
// the first is a split of a KV head's tile of queries, of the second 4 * 2^quads_shift columns of a head. What products
// make comes in words, and so does what splits leave: o, m (an exponent of 2) and l.
struct SplitTask {
  AttentionPrepare prepare;  // q stays where it was
  Attention op;
  int group, query_tiles, tile_queries;  // queries of a KV head, tiles of them, and what all but the last have
  int splits_shift;                      // there are 2^splits_shift splits
  int n_units, n_merge_units, head_units;
  int quads_shift;
  uint32_t query_tiles_step, chunks_step, head_units_step;  // chunks: of 64 columns
  MailboxSource u_mailbox, k_mailbox, v_mailbox, gate_mailbox, split_mailbox;
  int gate_at;  // in the vector of gate_mailbox
  int32_t y_mailbox;
};

// What splits leave in words: o, [n_merge_units, n_splits, columns of a unit], as a vector; then [n_heads, n_splits]
// pairs, each m and l.
LB_FN int split_columns(const SplitTask& p) { return 4 << p.quads_shift; }
LB_FN int split_at(const SplitTask& p, int head, int split, int column) {
  const int unit = column >> (p.quads_shift + 2);
  return ((head * p.head_units + unit) << p.splits_shift | split) * split_columns(p) +
         (column & (split_columns(p) - 1));
}
LB_FN int split_sums_at(const SplitTask& p, int head, int split) {
  return mailbox_length(p.n_merge_units * split_columns(p) << p.splits_shift) + 2 * (head << p.splits_shift | split);
}

// A row of a recurrent layer. kDeltaStep: from the projections to y = o silu(z) norm_w, in words, and o's squares;
// kDeltaCommit: conv's history and pending row, which it may write when all of o is there.
// A unit of o is a slice of 16 columns of S, or two where y is rounded: a run. y of n values is n words or, rounded, a
// word for four codes each, then one for each run's scale; behind it each unit's sum of squares.
struct DeltaTask {
  CausalConv conv;  // of kMegaTaps
  DeltaPrepare prepare;
  GatedDelta step;
  const float* z;       // [n_v_heads, dv], gates before silu
  const float* norm_w;  // [dv]
  MailboxSource x_mailbox, g_mailbox, beta_mailbox, z_mailbox, y_mailbox, squares;
  int unit_shift;  // of 2^unit_shift slices: 0; 1: y is rounded
  int n_units;
  int slices_each, more;      // part i has slices_each slices of S, and a unit more while i < more
  int team_slices;            // at a time: 1, or a unit where a block has more slices than teams
  int team_shift;             // a slice has 2^team_shift warps, 32 rows of S each
  uint32_t head_slices_step;  // slices of a value head; then by what a value head gives its key head
  uint32_t key_heads_step;
};

// Where o's squares are in the words of y.
LB_FN int squares_at(const DeltaTask& p) {
  const int n = p.step.n_v_heads * p.step.dv;
  return p.unit_shift == 0 ? mailbox_length(n) : n / 4 + n / kRoundRun;
}

// Whether a launch goes on with the next token, which the host says while it computes this one: it allows a token when
// it has taken the one before the last, so that what is on its way can still be dropped.
struct TokenBudget {
  const uint32_t* allowed;  // [1] of the host: *NextToken::ring.written may rise to this, modulo 2^32
  uint32_t* ended;          // [1] of the host: *written at the launch's end, there before *written says so
  uint32_t* keep_going;     // [1] of the device, for the blocks: 0 or 1
};

// kAdjust: the sampler's first step; part i has rows_each candidates, and one more while i < more. kSample: the others.
// The likeliest of each block's travel in words where they are all that is asked for: two of a key, its high half
// first.
struct SampleTask {
  SampleOnGrid sample;
  NextToken next;
  TokenBudget budget;
  int rows_each, more;
  MailboxSource best_mailbox;  // [blocks, 2]
};

struct alignas(16) Task {
  TaskKind kind;
  union {
    EmbedTask embed;
    RopeTable rope;
    ProductTask product;
    SplitTask attention;
    DeltaTask delta;
    SampleTask sample;
  };
};
static_assert(sizeof(Task) <= 512);

// Part `part` of `n_parts` of a task, in a phase. kWaits: one before which all blocks have to arrive; kMakesRows: of a
// product; kBeforeState: the block's next step is a recurrence's; kBeforeAdjust: the sampler's first.
struct alignas(16) TaskStep {
  static constexpr uint16_t kWaits = 0x8000, kMakesRows = 0x4000, kBeforeState = 0x2000;
  static constexpr uint16_t kBeforeAdjust = 0x1000, kPhase = 0x0fff;
  uint16_t task, part, n_parts, phase_bits;
  uint16_t n_chunks = 0, n_passes = 0;  // of a product whose weights are streamed: of them, and of its sums
  uint16_t skews = 0;                   // and what precedes the first row in each plane, four bits each
  uint16_t arrives = 0;  // phases that are over for the block behind it, since it last arrived; 0: it does not
};
static_assert(sizeof(TaskStep) == 16);
LB_FN int phase_of(const TaskStep& step) { return step.phase_bits & TaskStep::kPhase; }
LB_FN bool waits(const TaskStep& step) { return (step.phase_bits & TaskStep::kWaits) != 0; }
LB_FN bool makes_rows(const TaskStep& step) { return (step.phase_bits & TaskStep::kMakesRows) != 0; }
LB_FN bool is_before_state(const TaskStep& step) { return (step.phase_bits & TaskStep::kBeforeState) != 0; }
LB_FN bool is_before_adjust(const TaskStep& step) { return (step.phase_bits & TaskStep::kBeforeAdjust) != 0; }

// In pinned memory of the host.
struct MegaReport {
  uint32_t stuck;  // 1 + the phase in which a block gave up waiting; 0: none
};

// When a block began a step, had what it waited for, and was done: nanoseconds of one clock.
struct StepTimes {
  uint64_t began, waited, done;
};

// What tasks of every layer ask of an append: each block has it at hand.
struct TokenNumbers {
  int32_t n_past, key_buffer, n_accepted;
  int32_t first_accepted;  // anything where none is
};

// Where things are in dynamic shared memory.
struct MegaMemory {
  int steps_at, ring_at, ring_bytes;
};

struct Mega {
  const Task* tasks;             // [n_tasks]
  const TaskStep* steps;         // [blocks, n_steps]
  const StreamCopy* streams;     // [blocks, n_streams, planes]: a block's chunks of a token, in their order
  const int32_t* stream_counts;  // [blocks]: so many of them
  uint32_t* arrived;             // [1]: blocks times phases so far, modulo 2^32, as of the last that blocks arrived at
  Mailbox* mailboxes;            // [MegaPlan::n_mailboxes]
  uint32_t first;                // *arrived when the launch begins
  int n_steps, n_phases;
  int n_tokens;                // at most; fewer where the host does not allow more
  const uint32_t* keep_going;  // [1], as in Leave; null: n_tokens is 1
  int n_streams;               // a multiple of kStreamChunks
  MegaMemory memory;
  long timeout_ns;  // that a block waits for the others; less than 2^32
  MegaReport* report;
  StepTimes* times;  // [blocks, n_steps], of the last token, by packs with Target::has_timeline; null: none are taken
};

// Dynamic shared memory: two tasks, how the block and its stream stand, sums of products, what a task needs (of a
// product x as it is or rounded), the block's steps, the ring of weights.
inline constexpr int kMegaStaticBytes = 512;  // of shared memory, at most
inline constexpr int kMegaMaxSteps = 1024;
inline constexpr int kMegaStateAt = 1024, kMegaStreamAt = 1152, kMegaSumsAt = 1920, kMegaPoolAt = 7424;
// Of a product, whose sums wait in shared memory at a time: sums of all matrices and warps of a row; rows, a lane of
// who finishes for each, or two where there are many.
inline constexpr int kPassSums = 512, kPassRows = 32, kManyRows = 128;
// Rounded: a byte for each value, a scale and a sum for each run.
LB_FN constexpr size_t product_pool_bytes(int n_in, bool is_rounded) {
  return (is_rounded ? size_t(n_in) + size_t(n_in) / kRoundRun * 8 : size_t(n_in) * 4) + 256;
}
// Rows of 16-bit values start in different banks, 16-byte aligned.
LB_FN constexpr int split_row_stride(int dim, int value_bytes) { return value_bytes == 2 ? dim + 8 : dim; }
LB_FN constexpr size_t split_pool_bytes(int dim, int value_bytes) {
  return size_t(4 * kSplitTile + kSplitRows) * split_row_stride(dim, value_bytes) * value_bytes +
         size_t(kSplitRows) * kSplitTile * 4;
}
inline constexpr size_t kMergePoolBytes = size_t(kMegaThreads / 32) * 128 * 4;
inline constexpr size_t kSamplePoolBytes = 1024;
// DeltaStep: of each warp sums over its rows of S for two rows of 16 columns of two slices, k.k, q.q and k.q; of each
// thread older inputs of three channels; a path for each team.
inline constexpr int kStepSums = 68, kMegaTaps = 4;
inline constexpr size_t kDeltaPoolBytes = size_t(kMegaThreads / 32) * kStepSums * 4 +
                                          size_t(kMegaThreads) * 3 * (kMegaTaps - 1) * 4 +
                                          size_t(kMegaThreads / 32 + 1) * kMaxTree * 8;

}  // namespace lb::gpu
