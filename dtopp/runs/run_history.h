// What a run has written to metrics.jsonl, read back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace dtopp {

// One metric of a run: where it has a value. Null (a number that was not finite) is NaN.
struct Series {
  std::vector<int64_t> steps;  // ascending
  std::vector<double> values;
};

// Everything that metrics.jsonl holds, column by column, in steps' order.
struct RunHistory {
  std::map<std::string, Series> series;  // "train/loss" → …
  Series tokens, time;                   // of training lines: tokens seen, seconds since the epoch
};

// A torn last line is left out. DataError names the file and the line that is not what MetricsWriter writes,
// or whose step does not come after the one before it.
RunHistory read_run_history(const std::filesystem::path& metrics_file);

}  // namespace dtopp
