// Suffix drafts, unions of trees and DraftPlanner, for tests. A tree is (tokens, parents, scores) of its rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"
#include "bindings/ids.h"
#include "bindings/kernels/bindings.h"
#include "ops/draft_rules.h"
#include "speculation/merge.h"
#include "speculation/planner.h"
#include "speculation/suffix.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

using Rows = std::tuple<std::vector<int32_t>, std::vector<int32_t>, std::vector<float>>;

Draft draft_of(const std::optional<Rows>& rows) {
  Draft draft{};
  if (!rows || std::get<0>(*rows).empty()) return draft;
  const auto& [tokens, parents, scores] = *rows;
  LB_CHECK(tokens.size() <= kMaxTree && parents.size() == tokens.size() && scores.size() == tokens.size(), kInvalid,
           "a tree has up to ", kMaxTree, " tokens, and a parent and a score each");
  drafting::start(draft, tokens[0]);
  for (size_t i = 1; i < tokens.size(); ++i) {
    LB_CHECK(parents[i] >= 0 && parents[i] < draft.rows, kInvalid, "row ", i, " has parent ", parents[i]);
    drafting::add(draft, tokens[i], parents[i], scores[i]);
  }
  return draft;
}

Rows rows_of(const Draft& draft) {
  return {{draft.tokens, draft.tokens + draft.rows},
          {draft.parents, draft.parents + draft.rows},
          {draft.scores, draft.scores + draft.rows}};
}

constexpr const char* kSources[] = {"none", "sequence", "expected", "outputs"};  // of SuffixSource
constexpr const char* kKinds[] = {"plain", "text", "model"};                     // of StepKind

StepCosts costs_of(const std::vector<std::pair<int, double>>& append, double plain_ms, double draft_ms,
                   double context_ms, int draft_depth, double first_ms) {
  StepCosts costs{.append = {},
                  .plain_ms = plain_ms,
                  .draft_ms = draft_ms,
                  .draft_depth = draft_depth,
                  .first_ms = first_ms,
                  .context_ms = context_ms};
  for (const auto& [rows, ms] : append) costs.append.push_back({rows, ms});
  return costs;
}

}  // namespace

void bind_speculation(nb::module_& m) {
  nb::class_<SuffixDrafter>(m, "SuffixDrafter", "Drafts from text that occurred before.")
      .def(
          "__init__",
          [](SuffixDrafter* self, int context, int expected, std::shared_ptr<EarlierOutputs> outputs) {
            new (self) SuffixDrafter(context, expected, std::move(outputs));
          },
          "context"_a, "expected"_a = 0, "outputs"_a = nb::none())
      .def_static("planned_bytes", &SuffixDrafter::planned_bytes, "context"_a, "expected"_a)
      .def_prop_ro("n_tokens", &SuffixDrafter::n_tokens)
      .def(
          "push", [](SuffixDrafter& drafter, const Ids& tokens) { drafter.push(span(tokens)); }, "tokens"_a)
      .def("truncate", &SuffixDrafter::truncate, "n_tokens"_a)
      .def(
          "expect", [](SuffixDrafter& drafter, const Ids& text) { drafter.expect(span(text)); }, "text"_a)
      .def(
          "propose",
          [](const SuffixDrafter& drafter, int max_rows) {
            const SuffixDraft draft = drafter.propose(max_rows);
            return nb::make_tuple(rows_of(draft.tree), draft.accepted, draft.match, kSources[int(draft.source)]);
          },
          "max_rows"_a = kMaxTree, "(tree, expected number of accepted tokens, length of the match, source).");

  m.def(
      "merge",
      [](const Rows& a, const Rows& b, int max_rows) { return rows_of(merge(draft_of(a), draft_of(b), max_rows)); },
      "a"_a, "b"_a, "max_rows"_a = kMaxTree);
  m.def(
      "expected_tokens",
      [](const Rows& rows) {
        const Draft draft = draft_of(rows);
        const auto sums = expected_tokens(draft);
        return std::vector<double>(sums.begin() + 1, sums.begin() + 1 + draft.rows);
      },
      "tree"_a, "Expected number of accepted tokens of the first 1, 2, ... rows.");

  nb::class_<DraftPlanner>(m, "DraftPlanner", "Decides what each decode step verifies.")
      .def(
          "__init__",
          [](DraftPlanner* self, const std::vector<std::pair<int, double>>& append, double plain_ms, double draft_ms,
             bool has_model, int draft_budget, double context_ms, int draft_depth, double first_ms) {
            new (self) DraftPlanner(costs_of(append, plain_ms, draft_ms, context_ms, draft_depth, first_ms), has_model,
                                    draft_budget);
          },
          "append"_a, "plain_ms"_a, "draft_ms"_a = 0.0, "has_model"_a = false, "draft_budget"_a = 0,
          "context_ms"_a = 0.0, "draft_depth"_a = 0, "first_ms"_a = 0.0)
      .def(
          "set_costs",
          [](DraftPlanner& planner, const std::vector<std::pair<int, double>>& append, double plain_ms, double draft_ms,
             double context_ms, int draft_depth, double first_ms) {
            planner.set_costs(costs_of(append, plain_ms, draft_ms, context_ms, draft_depth, first_ms));
          },
          "append"_a, "plain_ms"_a, "draft_ms"_a = 0.0, "context_ms"_a = 0.0, "draft_depth"_a = 0, "first_ms"_a = 0.0)
      .def_prop_ro("draft_depth", &DraftPlanner::draft_depth)
      .def_prop_ro("model_may_pay", &DraftPlanner::model_may_pay)
      .def(
          "choose",
          [](DraftPlanner& planner, const std::optional<Rows>& text, int max_rows) {
            return kKinds[int(planner.choose(draft_of(text), max_rows))];
          },
          "text"_a = nb::none(), "max_rows"_a = kMaxTree)
      .def(
          "tree",
          [](DraftPlanner& planner, const std::optional<Rows>& model) {
            const Draft draft = draft_of(model);
            return rows_of(planner.tree(model ? &draft : nullptr));
          },
          "model"_a = nb::none())
      .def_prop_ro("rows_ahead", &DraftPlanner::rows_ahead)
      .def(
          "set_model_tree",
          [](DraftPlanner& planner, const Rows& model, int rows) { planner.set_model_tree(draft_of(model), rows); },
          "model"_a, "rows"_a)
      .def_prop_rw(
          "experience", [](const DraftPlanner& planner) { return planner.experience().numbers(); },
          [](DraftPlanner& planner, const std::vector<double>& numbers) {
            planner.set_experience(DraftExperience::from(numbers));
          })
      .def("start_sequence", &DraftPlanner::start_sequence, "is_timed"_a)
      .def("add_draft_time", &DraftPlanner::add_draft_time, "ms"_a)
      .def("add_step_time", &DraftPlanner::add_step_time, "rows"_a, "ms"_a)
      .def(
          "add_accepted", [](DraftPlanner& planner, const std::vector<int32_t>& path) { planner.add_accepted(path); },
          "path"_a)
      .def_prop_ro("credit", &DraftPlanner::credit);
}

}  // namespace lb::kernels
