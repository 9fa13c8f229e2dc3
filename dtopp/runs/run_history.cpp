#include "dtopp/runs/run_history.h"

#include <limits>
#include <new>

#include <simdjson.h>

#include "dtopp/base/files.h"

namespace dtopp::runs {
namespace {

namespace dom = simdjson::dom;

class HistoryReader {
 public:
  explicit HistoryReader(fs::path path) : path_(std::move(path)) {}

  void read_line(std::string_view line) {
    ++line_;
    const dom::object members = parse(line);
    const auto step = header<int64_t>(members, "step");
    const auto tokens = header<int64_t>(members, "tokens");
    const auto time = header<double>(members, "time");
    bool is_training = false;
    size_t index = 0;
    for (const auto [name, value] : members) {
      if (name == "step" || name == "tokens" || name == "time") continue;
      is_training = is_training || name.starts_with("train/");
      append(column(name, index++), name, step, number(name, value));
    }
    if (!is_training) return;
    append(history_.tokens, "tokens", step, static_cast<double>(tokens));
    append(history_.time, "time", step, time);
  }

  RunHistory take() { return std::move(history_); }

 private:
  using Column = std::map<std::string, Series>::value_type;

  [[noreturn]] void fail(const std::string& cause) const {
    throw DataError(path_, ": line ", line_, ": ", cause);
  }

  dom::object parse(std::string_view line) {
    dom::element value;
    const auto error = parser_.parse(line.data(), line.size()).get(value);
    if (error == simdjson::MEMALLOC) throw std::bad_alloc();
    if (error) fail(std::string("invalid JSON: ") + simdjson::error_message(error));
    dom::object object;
    if (value.get(object)) fail("must be a JSON object");
    return object;
  }

  template <class Number>
  Number header(const dom::object& members, std::string_view name) const {
    Number value{};
    if (members.at_key(name).get(value)) fail("has no number " + std::string(name));
    return value;
  }

  double number(std::string_view name, const dom::element& value) const {
    if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
    double result = 0;
    if (value.get(result)) fail(std::string(name) + ": expected a number or null");
    return result;
  }

  // Consecutive lines have the same names in the same order, except for validations. Looking up every name
  // would take most of the time.
  Series& column(std::string_view name, size_t index) {
    if (index >= columns_.size()) columns_.resize(index + 1, nullptr);
    if (columns_[index] == nullptr || columns_[index]->first != name)
      columns_[index] = &*history_.series.try_emplace(std::string(name)).first;
    return columns_[index]->second;
  }

  void append(Series& series, std::string_view name, int64_t step, double value) const {
    if (!series.steps.empty() && series.steps.back() >= step)
      fail(std::string(name) + " of step " + std::to_string(step) + " comes after that of step " +
           std::to_string(series.steps.back()));
    series.steps.push_back(step);
    series.values.push_back(value);
  }

  fs::path path_;
  uint64_t line_ = 0;
  dom::parser parser_;
  RunHistory history_;
  std::vector<Column*> columns_;  // by position in a line
};

}  // namespace

RunHistory read_run_history(const fs::path& metrics_file) {
  // Read, not mapped: a run that resumes meanwhile makes the file shorter.
  const std::string all = read_file(metrics_file, std::numeric_limits<uint64_t>::max());
  std::string_view text = all;
  HistoryReader reader(metrics_file);
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    reader.read_line(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return reader.take();
}

}  // namespace dtopp::runs
