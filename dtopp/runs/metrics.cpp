#include "dtopp/runs/metrics.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/base/path_kind.h"

namespace dtopp::runs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLineStart = "{\"step\":";

template <class Number>
void append_number(std::string& text, Number value) {
  std::array<char, 64> buffer;
  text.append(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr);
}

void append_value(std::string& text, double value) {
  constexpr double kExactIntegers = 9007199254740992.0;  // 2^53
  if (!std::isfinite(value)) {
    text += "null";
  } else if (value == 0 && std::signbit(value)) {
    text += "-0.0";  // "-0" would be read as the integer 0
  } else if (value == std::trunc(value) && std::abs(value) < kExactIntegers) {
    append_number(text, static_cast<int64_t>(value));  // to_chars would print the double 100000 as 1e+05
  } else {
    append_number(text, value);
  }
}

// The step of a complete line in the format of to_json; nullopt for anything else, such as a line torn by a
// crash.
std::optional<int64_t> step_of(std::string_view line) {
  if (!line.starts_with(kLineStart) || !line.ends_with('}')) return std::nullopt;
  int64_t step = 0;
  const char* first = line.data() + kLineStart.size();
  const auto [end, error] = std::from_chars(first, line.data() + line.size(), step);
  if (error != std::errc{} || *end != ',') return std::nullopt;
  return step;
}

// A validation without held-out text has only the accuracies of its tasks.
bool is_validation(std::string_view line) {
  return line.find("\"val/") != std::string_view::npos || line.find("\"eval/") != std::string_view::npos;
}

std::string lines_until(std::string_view text, int64_t last_step, int64_t last_validation) {
  std::string kept;
  kept.reserve(text.size());
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    if (newline == std::string_view::npos) break;  // a torn line
    const auto line = text.substr(0, newline);
    const auto step = step_of(line);
    if (step && *step <= (is_validation(line) ? last_validation : last_step))
      kept += text.substr(0, newline + 1);
    text.remove_prefix(newline + 1);
  }
  return kept;
}

void drop_lines_past(const fs::path& path, int64_t last_step, int64_t last_validation) {
  if (path_kind(path) == PathKind::kNothing) return;
  const std::string text = read_file(path, std::numeric_limits<uint64_t>::max());
  const std::string kept = lines_until(text, last_step, last_validation);
  if (kept.size() != text.size()) write_file_atomically(path, kept);
}

}  // namespace

std::string to_json(const MetricRecord& record) {
  std::string line(kLineStart);
  append_number(line, record.step);
  line += ",\"tokens\":";
  append_number(line, record.tokens);
  line += ",\"time\":";
  append_value(line, record.time);
  for (const auto& [name, value] : record.values) {
    line += ',' + quote_json(name) + ':';
    append_value(line, value);
  }
  return line + '}';
}

double last_value(const fs::path& directory, std::string_view name) {
  if (path_kind(directory / kMetricsFile) == PathKind::kNothing) return 0;
  const std::string text = read_file(directory / kMetricsFile, std::numeric_limits<uint64_t>::max());
  const std::string key = ',' + quote_json(std::string(name)) + ':';
  const size_t found = text.rfind(key, text.rfind('\n'));
  double value = 0;
  if (found != std::string::npos)
    std::from_chars(text.data() + found + key.size(), text.data() + text.size(), value);
  return value;
}

MetricsWriter::MetricsWriter(const fs::path& directory, int64_t resume_step, bool tensorboard,
                             std::optional<int64_t> last_validation)
    : path_(directory / kMetricsFile) {
  drop_lines_past(path_, resume_step, last_validation.value_or(resume_step));
  errno = 0;
  file_.open(path_, std::ios::binary | std::ios::app);
  if (!file_) throw file_error("open", path_, errno);
  if (tensorboard) events_ = std::make_unique<EventFile>(directory, resume_step + 1);
  sync_directory(directory);
}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::write(const MetricRecord& record) {
  errno = 0;
  file_ << to_json(record) << '\n' << std::flush;
  if (!file_) throw file_error("write", path_, errno);
  if (events_) events_->write(record);
}

void MetricsWriter::sync() const {
  sync_file(path_);
  if (events_) sync_file(events_->path());
}

}  // namespace dtopp::runs
