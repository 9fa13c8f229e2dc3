// Shows the progress of a study on standard error while it runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "dtopp/base/progress.h"
#include "dtopp/study/expansion.h"
#include "dtopp/study/run_folder.h"

namespace dtopp::study {

class StudyProgress {
 public:
  // `costs` holds one cost per run; progress is their completed share. The vectors must outlive this object.
  StudyProgress(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                const std::vector<double>& costs, std::FILE* stream = stderr);

  // Redraws in place on a terminal. Elsewhere it prints one line per minute, and one after make_due().
  void draw(const std::vector<size_t>& running);
  void make_due() { next_draw_ = began_; }
  // See StatusLine.
  void clear() { line_.clear(); }
  void finish() { line_.end(); }

  // Returns "study  3 of 10 runs done, 1 failed, 2 running  43 %  5m12s left". A failed run counts as
  // complete.
  std::string line(const std::vector<size_t>& running, double seconds);

 private:
  using Clock = std::chrono::steady_clock;

  bool counts(size_t index) const;
  double done_share(size_t index) const;
  double cost_done() const;

  const std::vector<StudyRun>& runs_;
  const std::vector<RunRecord>& records_;
  const std::vector<double>& costs_;
  StatusLine line_;
  Clock::time_point began_, next_draw_;
  double total_ = 0;
  int64_t total_runs_ = 0;
  double before_ = 0;  // cost that was complete at construction
};

}  // namespace dtopp::study
