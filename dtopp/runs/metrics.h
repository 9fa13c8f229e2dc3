// Writes a run's metrics to metrics.jsonl (one object per line, flushed at once) and, under the same names,
// to TensorBoard event files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtopp::runs {

inline constexpr char kMetricsFile[] = "metrics.jsonl";

// One line of metrics.jsonl, with keys in this order. Doubles are printed as the shortest text that reads
// back exactly, whole numbers without a point, NaN and infinities as null.
struct MetricRecord {
  int64_t step = 0;
  int64_t tokens = 0;
  double time = 0;                                     // seconds since the epoch
  std::vector<std::pair<std::string, double>> values;  // "train/loss" → value
};

// The line without its newline.
std::string to_json(const MetricRecord& record);

// Returns the value of `name` in the last complete line of <directory>/metrics.jsonl that holds it; 0 if
// there is none.
double last_value(const std::filesystem::path& directory, std::string_view name);

class EventFile;

class MetricsWriter {
 public:
  // Appends to <directory>/metrics.jsonl. It first drops every line past `resume_step` and a torn last line;
  // a crash meanwhile loses no other line. It reads the file from its end to the newest line before
  // `resume_step`. The file of a resumed run then equals that of a run that was never stopped.
  //
  // A `resume_step` of -1 keeps nothing, not even a validation before the first step. `last_validation` is
  // the newest step whose validation the resumed state has recorded (default: resume_step). A later
  // validation is repeated, so its line is dropped too.
  //
  // The names of new files survive a power loss.
  //
  // Throws:        DataError if the file cannot be written
  MetricsWriter(const std::filesystem::path& directory, int64_t resume_step, bool tensorboard,
                std::optional<int64_t> last_validation = std::nullopt);
  ~MetricsWriter();
  // Writes to all files before it returns, or throws DataError.
  void write(const MetricRecord& record);
  // Makes the written lines survive a power loss, or throws DataError.
  void sync() const;

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  std::unique_ptr<EventFile> events_;
};

}  // namespace dtopp::runs
