#include "dtopp/study/study_progress.h"

#include <algorithm>
#include <cmath>

#include "dtopp/base/format.h"

namespace dtopp::study {
namespace {

constexpr auto kLineElsewhere = std::chrono::seconds(60);

}  // namespace

StudyProgress::StudyProgress(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                             const std::vector<double>& costs, std::FILE* stream)
    : runs_(runs),
      records_(records),
      costs_(costs),
      line_(stream),
      began_(Clock::now()),
      next_draw_(line_.on_terminal() ? began_ : began_ + kLineElsewhere) {
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!counts(i)) continue;
    total_ += costs[i];
    ++total_runs_;
  }
  before_ = cost_done();
}

// A run that is not selected counts only if it is done.
bool StudyProgress::counts(size_t index) const {
  return runs_[index].selected || records_[index].status == RunStatus::kDone;
}

double StudyProgress::done_share(size_t index) const {
  if (records_[index].status != RunStatus::kPending) return 1;
  const auto steps = static_cast<double>(runs_[index].config.training.steps);
  return std::min(1.0, static_cast<double>(last_step(runs_[index])) / steps);
}

double StudyProgress::cost_done() const {
  double cost = 0;
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (counts(i)) cost += costs_[i] * done_share(i);
  }
  return cost;
}

std::string StudyProgress::line(const std::vector<size_t>& running, double seconds) {
  const auto count = [&](RunStatus status) {
    return std::to_string(std::ranges::count(records_, status, &RunRecord::status));
  };
  std::string text =
      "study  " + count(RunStatus::kDone) + " of " + std::to_string(total_runs_) + " runs done";
  if (const std::string failed = count(RunStatus::kFailed); failed != "0") text += ", " + failed + " failed";
  if (!running.empty()) text += ", " + std::to_string(running.size()) + " running";
  const double done = cost_done();
  text += "  " + std::to_string(static_cast<int>(std::floor(100 * done / total_))) + " %";
  const double rate = (done - before_) / seconds;
  if (done < total_ && rate > 0) text += "  " + format_duration((total_ - done) / rate) + " left";
  return text;
}

void StudyProgress::draw(const std::vector<size_t>& running) {
  const auto now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = line_.on_terminal() ? now : now + kLineElsewhere;
  line_.draw(line(running, std::chrono::duration<double>(now - began_).count()));
}

}  // namespace dtopp::study
