#include "dtopp/inference/scheduler.h"

namespace dtopp::inference {
namespace {

constexpr int64_t kPromptTokensPerStep = 2048;  // of new sequences; running ones wait for them

}  // namespace

Scheduler::Scheduler(const InferenceModel& model, const SchedulerLimits& limits)
    : limits_(limits), generation_(model) {}

int64_t Scheduler::reservation(const SequenceInput& sequence) {
  const int64_t tokens = std::ssize(sequence.ids) + sequence.max_tokens;
  return (tokens + models::kCacheBlock - 1) / models::kCacheBlock * models::kCacheBlock;
}

Scheduler::Admission Scheduler::submit(std::vector<SequenceInput> sequences,
                                       const std::shared_ptr<TokenReceiver>& receiver) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return Admission::kClosed;
  if (waiting_.size() + sequences.size() > limits_.waiting) return Admission::kFull;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t left = sequences[i].max_tokens, reserved = reservation(sequences[i]);
    waiting_.push_back({std::move(sequences[i]), receiver, i, left, reserved});
  }
  load_.waiting = waiting_.size();
  arrived_.notify_all();
  return Admission::kQueued;
}

void Scheduler::add_budget(int64_t budget, std::shared_ptr<moe::Router> router) {
  const std::lock_guard lock(mutex_);
  budgets_[budget] = std::move(router);
  arrived_.notify_all();
}

std::vector<int64_t> Scheduler::budgets() const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> budgets;
  for (const auto& [budget, router] : budgets_) budgets.push_back(budget);
  return budgets;
}

std::optional<int64_t> Scheduler::missing_budget(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  std::optional<int64_t> missing;
  arrived_.wait_for(lock, time, [&] {
    const auto job = std::ranges::find_if(
        waiting_, [&](const Job& waiting) { return !can_start(waiting) && waiting.receiver->is_needed(); });
    if (job != waiting_.end()) missing = job->input.budget;
    return missing.has_value();
  });
  return missing;
}

// Requires the lock.
bool Scheduler::can_start(const Job& job) const {
  return job.input.budget == 0 || budgets_.contains(job.input.budget);
}

void Scheduler::step(std::chrono::milliseconds time) {
  for (auto job = running_.begin(); job != running_.end();)
    job = job->second.receiver->is_needed() ? std::next(job) : end(job);
  {
    std::unique_lock lock(mutex_);
    if (running_.empty())
      arrived_.wait_for(lock, time, [&] {
        return std::ranges::any_of(waiting_, [&](const Job& job) { return can_start(job); });
      });
    admit();
  }
  for (const GeneratedToken& token : generation_.step()) {
    const auto found = running_.find(token.sequence);
    Job& job = found->second;
    job.left -= 1;
    if (!job.receiver->receive(job.sequence, token) || job.left == 0) end(found);
  }
}

// Requires the lock.
void Scheduler::admit() {
  std::erase_if(waiting_, [](const Job& job) { return !job.receiver->is_needed(); });
  int64_t prompt_tokens = 0;
  for (auto next = waiting_.begin(); next != waiting_.end() && running_.size() < limits_.running;) {
    if (!can_start(*next)) {
      ++next;
      continue;
    }
    const auto tokens = std::ssize(next->input.ids);
    if (load_.cache_tokens + next->reserved > limits_.cache_tokens) break;
    if (prompt_tokens > 0 && prompt_tokens + tokens > kPromptTokensPerStep) break;
    prompt_tokens += tokens;
    load_.cache_tokens += next->reserved;
    if (next->input.budget > 0) next->input.router = budgets_.at(next->input.budget);
    const size_t number = generation_.add(std::move(next->input));
    running_.emplace(number, std::move(*next));
    next = waiting_.erase(next);
  }
  load_.waiting = waiting_.size();
  load_.running = running_.size();
}

// Returns the job after it.
Scheduler::Running::iterator Scheduler::end(Running::iterator job) {
  generation_.remove(job->first);
  const std::lock_guard lock(mutex_);
  load_.cache_tokens -= job->second.reserved;
  const auto next = running_.erase(job);
  load_.running = running_.size();
  return next;
}

bool Scheduler::close_if_idle() {
  const std::lock_guard lock(mutex_);
  is_closed_ = is_closed_ || (waiting_.empty() && load_.running == 0);
  return is_closed_;
}

Scheduler::Load Scheduler::load() const {
  const std::lock_guard lock(mutex_);
  return load_;
}

}  // namespace dtopp::inference
