// Reads a run's metrics.jsonl back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace dtopp::runs {

// Divides expert counts into ranges that double. A few metrics then show how many tokens use how many
// experts.

struct CountRange {
  int64_t first, last;

  // For example "2" or "3-4".
  std::string name() const {
    const std::string begin = std::to_string(first);
    return first == last ? begin : begin + "-" + std::to_string(last);
  }
  std::string metric() const { return "moe/tokens_with/" + name(); }
};

// 1, 2, 3-4, 5-8, … up to `most`.
inline std::vector<CountRange> count_ranges(int64_t most) {
  std::vector<CountRange> ranges;
  for (int64_t first = 1, last = 1; first <= most; first = last + 1, last *= 2)
    ranges.push_back({first, std::min(last, most)});
  return ranges;
}

// One metric of a run at the steps that have a value. Null (a number that was not finite) becomes NaN.
struct Series {
  std::vector<int64_t> steps;  // ascending
  std::vector<double> values;
};

// The contents of metrics.jsonl, one series per metric, in the order of steps.
struct RunHistory {
  std::map<std::string, Series> series;  // "train/loss" → …
  Series tokens, time;                   // training lines only: tokens so far, seconds since the epoch
};

// Reads the file; a torn last line is ignored. A step may have several lines with different metrics.
//
// Throws:        DataError with the file if it cannot be read; with file and line if the line is not in the
//                format of MetricsWriter or an earlier line has the same metric at this step or a later one
RunHistory read_run_history(const std::filesystem::path& metrics_file);

}  // namespace dtopp::runs
