// Exchanges between the ranks of a model that is split by tensors: each rank is a stream on a device of its own, and
// all ranks run the same ops in the same order. A rank pushes its values into the mailboxes of its peers and reads only
// its own memory. Sums are in the order of the ranks, in fp32, so every rank gets the same bits, whatever the rows.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace lb {

inline constexpr int kMaxRanks = 8;

// Two protocols, by the values of an exchange. Up to kMailboxValues a value travels with its tag, as a mailbox of 8
// bytes, which needs no flag. Longer exchanges send plain rows and then a flag per thread block: half the bytes.
inline constexpr int kMailboxValues = 16384;
inline constexpr int kMaxExchangeBlocks = 128;  // thread blocks of an exchange, each with a flag

// Of one rank, in its own memory. All zero at the start.
struct ExchangeCounters {
  uint32_t sequence;  // exchanges completed: the tag of the next one is one more
  uint32_t arrived;   // thread blocks of the running exchange that are done
  uint32_t failed;    // 1 + the rank whose values did not arrive; later exchanges do not wait. 0: none
};

// The mailboxes of all ranks. Slots are double-buffered by the parity of the tag: a rank sends exchange k + 2 after it
// has completed k + 1, for which every peer had to complete k.
struct RankMailboxes {
  uint64_t* words[kMaxRanks];  // [2, n, kMailboxValues] of each rank: value and tag, by parity and sender
  float* rows[kMaxRanks];      // [2, n, max_values] of each rank
  uint32_t* flags[kMaxRanks];  // [2, n, kMaxExchangeBlocks] of each rank: the tag, once the block's rows have arrived
  ExchangeCounters* counters;  // [1] of this rank
  uint32_t* report;            // [1] in host memory: a copy of counters->failed
  long max_values;             // of an exchange, a multiple of 4
  uint64_t timeout_ns;         // after which a rank counts as failed
  int rank, n;                 // this rank; all ranks
};

// y[i] = add[i] + (x_0[i] + x_1[i] + ... + x_n-1[i])    x_r: x of rank r
struct AllReduce {
  const float* x;    // [count]
  const float* add;  // [count] or null: the same values on every rank; may be y
  float* y;          // [count]; must not overlap x
  long count;        // a multiple of 4
  RankMailboxes ranks;
};

// y[r,:] = x_0[r,:], x_1[r,:], ..., x_n-1[r,:]
struct AllGather {
  const float* x;  // [rows, widths[rank]]
  float* y;        // [rows, sum of widths]; must not overlap x
  int rows, widths[kMaxRanks];
  RankMailboxes ranks;
};

}  // namespace lb
