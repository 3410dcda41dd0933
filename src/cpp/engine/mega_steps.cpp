// Launches the megakernel. Tables are uploaded once; between launches only the count of earlier arrivals changes.
#include "engine/mega_steps.h"

#include <algorithm>
#include <atomic>

namespace lb {
namespace {

// The tables of a plan on the device.
struct Tables {
  gpu::Task* tasks;
  gpu::TaskStep* steps;
  gpu::StreamCopy* streams;
  int32_t* stream_counts;
  uint32_t* arrived;
  gpu::Mailbox *mailboxes, *words;
  gpu::MegaRanks* ranks;
  gpu::StepTimes* times;

  Tables(Carver& carver, const gpu::MegaPlan& plan)
      : tasks(carver.take<gpu::Task>(plan.tasks.size())),
        steps(carver.take<gpu::TaskStep>(plan.steps.size())),
        streams(carver.take<gpu::StreamCopy>(plan.streams.size())),
        stream_counts(carver.take<int32_t>(plan.stream_counts.size())),
        arrived(carver.take<uint32_t>(1)),
        mailboxes(carver.take<gpu::Mailbox>(size_t(plan.n_mailboxes))),
        words(carver.take<gpu::Mailbox>(size_t(plan.n_words))),
        ranks(plan.n_words > 0 ? carver.take<gpu::MegaRanks>(1) : nullptr),
        times(plan.has_timeline ? carver.take<gpu::StepTimes>(plan.steps.size()) : nullptr) {}
};

}  // namespace

size_t MegaSteps::planned_bytes(const gpu::MegaPlan& plan) {
  Carver counter;
  Tables(counter, plan);
  return counter.used();
}

MegaSteps::MegaSteps(const gpu::MegaPlan& plan, uint32_t* keep_going, int max_tokens, Ring* ring, GpuStream& stream)
    : stream_(stream),
      ring_(ring),
      launch_(plan.launch),
      text_(gpu::to_string(plan)),
      memory_(stream.reserve(planned_bytes(plan))) {
  for (const gpu::Task& task : plan.tasks) task_names_.push_back(gpu::to_string(task));
  Carver carver(*memory_);
  const Tables to(carver, plan);
  const auto upload = [&](auto* at, const auto& from) { stream.upload(at, from.data(), from.size() * sizeof *at); };
  upload(to.tasks, plan.tasks);
  upload(to.steps, plan.steps);
  upload(to.streams, plan.streams);
  upload(to.stream_counts, plan.stream_counts);
  params_ = {.tasks = to.tasks,
             .steps = to.steps,
             .streams = to.streams,
             .stream_counts = to.stream_counts,
             .arrived = to.arrived,
             .mailboxes = to.mailboxes,
             .first = 0,
             .n_steps = plan.n_steps,
             .n_phases = plan.n_phases,
             .n_tokens = max_tokens,
             .keep_going = keep_going,
             .n_streams = plan.n_streams,
             .memory = plan.memory,
             .timeout_ns = kTimeoutNs,
             .report = &ring->report,
             .ranks = to.ranks,
             .times = to.times};
  words_ = to.words;
  n_words_ = plan.n_words;
  ranks_ = to.ranks;
}

void MegaSteps::join(const gpu::MegaRanks& ranks) { stream_.upload(ranks_, &ranks, sizeof ranks); }

void MegaSteps::step(uint32_t n) {
  n_requested_ = n + 1;
  is_running_ ? allow() : launch(n);
}

bool MegaSteps::follow(uint32_t n, const MegaSteps& leader) {
  if (!is_running_ || leader.ring_->ended != n) return false;
  params_.first += (n - n_before_) * uint32_t(params_.n_phases) * launch_.grid[0];
  is_running_ = false;
  n_before_ = n;
  return n_requested_ != n;
}

void MegaSteps::drop(uint32_t n) {
  n_requested_ = n;
  follow(n, *this);
}

StepTimeline MegaSteps::timeline() {
  const gpu::Target& target = stream_.pack().target();
  LB_CHECK(target.has_timeline, kUnsupported, "the pack of ", target.name,
           " was built without the timeline. Build it with: pip install --force-reinstall ./targets/", target.name,
           " --config-settings cmake.define.LUCEBOX_TIMELINE=ON");
  if (n_requested_ == 0) return {};
  const size_t n = size_t(launch_.grid[0]) * params_.n_steps;
  std::vector<gpu::StepTimes> times(n);
  std::vector<gpu::TaskStep> steps(n);
  stream_.download(times.data(), params_.times, n * sizeof(gpu::StepTimes));
  stream_.download(steps.data(), params_.steps, n * sizeof(gpu::TaskStep));
  StepTimeline result{.steps = {}, .tasks = task_names_};
  for (size_t i = 0; i < n; ++i)
    result.steps.push_back(
        {int(i / params_.n_steps), phase_of(steps[i]), steps[i].task, times[i].began, times[i].waited, times[i].done});
  return result;
}

void MegaSteps::launch(uint32_t n) {
  n_before_ = n;
  is_running_ = true;
  allow();
  stream_.pack().run(launch_, params_, stream_.queue());
}

void MegaSteps::allow() {
  const uint32_t n = n_before_ + std::min(n_requested_ - n_before_, uint32_t(params_.n_tokens));
  std::atomic_ref(ring_->allowed).store(n, std::memory_order_release);
}

}  // namespace lb
