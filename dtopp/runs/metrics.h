// Where a run's numbers go: metrics.jsonl (one object a line, flushed as written) and TensorBoard event files
// with the same names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtopp {

// One line of metrics.jsonl, keys in this order. Doubles are printed as the shortest text that reads back
// exactly, whole numbers without a point, NaN and infinities as null.
struct MetricRecord {
  int64_t step = 0;
  int64_t tokens = 0;
  double time = 0;                                     // seconds since the epoch
  std::vector<std::pair<std::string, double>> values;  // "train/loss" → value
};

// Without the newline.
std::string to_json(const MetricRecord& record);

// TensorBoard's event file: TFRecord framing with masked CRC-32C around hand-encoded Event protobufs.
class EventFile {
 public:
  // Creates events.out.tfevents.<time>.<host>.<pid> in `directory`, sorted after those already there. Steps
  // from `first_step` on that earlier files hold are purged by TensorBoard (a SessionLog START event).
  // DataError when it cannot be written.
  EventFile(const std::filesystem::path& directory, int64_t first_step);
  // One Event with all values; in the file when it returns. Values are rounded to float, TensorBoard's type.
  void write(const MetricRecord& record);
  const std::filesystem::path& path() const { return path_; }

 private:
  void append(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

class MetricsWriter {
 public:
  // Appends to <directory>/metrics.jsonl after dropping, atomically, every line past `resume_step` (and a
  // torn last line), so that a resumed run's file equals that of a run never stopped. DataError when it
  // cannot be written.
  // `resume_step` -1: nothing is kept, not even a validation before the first step. `last_validation` is the
  // newest step whose validation the resumed state knows of (by default resume_step): a later one is made
  // again, so its line goes too.
  MetricsWriter(const std::filesystem::path& directory, int64_t resume_step, bool tensorboard,
                std::optional<int64_t> last_validation = std::nullopt);
  ~MetricsWriter();
  // In the files when it returns, else DataError.
  void write(const MetricRecord& record);
  // What was written survives a power loss when it returns, else DataError.
  void sync() const;

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  std::unique_ptr<EventFile> events_;
};

}  // namespace dtopp
