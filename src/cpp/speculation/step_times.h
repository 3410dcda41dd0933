// StepTimes: the time of a step in units of a plain token's time. Starts from the costs measured initially and prefers
// real times of this sequence's steps. If other sequences are in the pass, its time counts for each of them.
#pragma once

#include <cstddef>
#include <vector>

#include "speculation/step_costs.h"

namespace lb {

class StepTimes {
 public:
  StepTimes();

  // Discards corrections learned for the former costs. Throws kInvalid.
  void set_costs(const StepCosts& costs);
  // Begins another sequence. is_timed: add_step_time() will be called for each of its steps.
  void start_sequence(bool is_timed);
  // Rows of other sequences in the next pass, one per sequence.
  void set_others(int rows) { others_ = rows; }
  bool has_others() const { return others_ > 0; }
  // The previous step was a plain token, for which the draft model still has to compute K and V.
  void set_after_plain(bool on) { is_after_plain_ = on; }

  // As in DraftPlanner. depth: the draft's.
  void add_draft_time(int depth, double ms);
  void add_step_time(int rows, double ms);
  void add_pass_time(int rows, double ms);

  // Without costs, the number of rows is fixed.
  bool has_costs() const { return !costs_.append.empty(); }
  // Whether real times replace the costs.
  bool learns() const { return has_costs() && !costs_.is_fixed; }
  // Whether a plain token must be timed again.
  bool wants_plain() const;

  // Row tiles of appends: how many rows of this sequence each holds, and the time of its append.
  size_t n_tiles() const { return costs_.append.size(); }
  int tile_rows(size_t tile) const { return costs_.append[tile].rows - others_; }
  double append_time(size_t tile) const { return in_tokens(pass_ms(tile)) - others_; }
  double time_of_rows(int rows) const { return has_costs() ? append_time(tile_of(rows)) : 1; }
  // The draft model's tree: its time, its depth for a number of rows, and the depth beyond which the time is constant;
  // 0: constant at all depths.
  double draft_time(int depth) const;
  int depth_of_rows(int rows) const;
  int longest_depth() const { return costs_.draft_depth; }

 private:
  static double mean_ratio(double mean, bool has_mean, double newest);
  double ratio(size_t i) const { return ratios_[i] > 0 ? ratios_[i] : ratio_; }
  double append_ms(size_t tile) const { return costs_.append[tile].ms * ratio(tile + 1); }
  double pass_ms(size_t tile) const { return append_ms(tile) + others_ * sequence_ms_; }
  double plain_ms() const { return others_ > 0 ? pass_ms(tile_of(others_ + 1)) : costs_.plain_ms * ratio(0); }
  double in_tokens(double ms) const { return ms / plain_ms() * (others_ + 1); }
  size_t tile_of(int rows) const;    // the smallest tile that holds these rows, or the last tile
  double draft_ms(int depth) const;  // initial cost, not corrected

  StepCosts costs_;             // initial cost, not corrected
  std::vector<double> ratios_;  // real time / costs_, for a plain token, then for each tile; 0: none yet
  double ratio_ = 1;            // the newest ratio, used for sizes not run yet
  double draft_ratio_ = 0;      // real time / cost of drafts; 0: none yet
  double sequence_ms_ = 0;      // time that each sequence adds to a pass, excluding its rows
  bool is_timed_ = false;
  bool is_after_plain_ = false;
  int since_plain_ = 0;  // steps
  int n_plain_ = 0;      // timed plain tokens of this sequence, up to kFirstPlain
  int others_ = 0;
};

}  // namespace lb
