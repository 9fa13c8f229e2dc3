#include "dtopp/report/document/columns.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace dtopp::report {
namespace {

static_assert(std::endian::native == std::endian::little, "pages carry little-endian numbers");

constexpr size_t kGenerationsKept = 16;

bool is_affine(std::span<const double> values, double first, double step) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != first + step * static_cast<double>(i)) return false;
  }
  return true;
}

template <class Number>
std::string bytes_of(std::span<const double> values) {
  std::string bytes(values.size() * sizeof(Number), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    Number number = std::numeric_limits<Number>::quiet_NaN();
    if (std::isfinite(values[i])) number = static_cast<Number>(values[i]);
    if (!std::isfinite(number)) number = std::numeric_limits<Number>::quiet_NaN();
    std::memcpy(bytes.data() + i * sizeof(Number), &number, sizeof(Number));
  }
  return bytes;
}

ReportColumn make_column(std::span<const double> values, ReportColumn::Kind kind) {
  ReportColumn column;
  column.n = values.size();
  if (!values.empty()) {
    column.first = values[0];
    column.step = values.size() > 1 ? values[1] - values[0] : 0;
    if (std::isfinite(column.first) && std::isfinite(column.step) &&
        is_affine(values, column.first, column.step))
      return column;
  }
  column.kind = kind;
  column.first = column.step = 0;
  column.bytes = kind == ReportColumn::Kind::kFloat64 ? bytes_of<double>(values) : bytes_of<float>(values);
  return column;
}

bool continues(const ReportColumn& longer, const ReportColumn& shorter) {
  if (longer.kind != shorter.kind || longer.n < shorter.n) return false;
  if (longer.kind == ReportColumn::Kind::kAffine)
    return longer.first == shorter.first && (longer.step == shorter.step || shorter.n < 2);
  return longer.bytes.starts_with(shorter.bytes);
}

}  // namespace

int Columns::insert(const std::string& key, ReportColumn made) {
  const auto [entry, is_new] = ids_.try_emplace(key, static_cast<int>(columns_.size()));
  if (is_new) columns_.emplace_back();
  ReportColumn& column = columns_[static_cast<size_t>(entry->second)];
  if (!is_new && continues(made, column)) {
    made.written_at = column.written_at;
    made.lengths = std::move(column.lengths);
  } else {
    made.written_at = generation_;
  }
  made.lengths[generation_] = made.n;
  if (made.lengths.size() > kGenerationsKept) made.lengths.erase(made.lengths.begin());
  column = std::move(made);
  return entry->second;
}

int Columns::add(const std::string& key, std::span<const double> values) {
  return insert(key, make_column(values, ReportColumn::Kind::kFloat32));
}

int Columns::add_exact(const std::string& key, std::span<const double> values) {
  return insert(key, make_column(values, ReportColumn::Kind::kFloat64));
}

uint64_t Columns::known_to(int id, uint64_t generation) const {
  const ReportColumn& column = at(id);
  const auto length = column.lengths.find(generation);
  return generation < column.written_at || length == column.lengths.end() ? 0 : length->second;
}

std::string base64_of(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t rest = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < rest ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) text += k <= rest ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::string base64_of(const ReportColumn& column, uint64_t from) {
  const size_t width = column.kind == ReportColumn::Kind::kFloat64 ? 8 : 4;
  return base64_of(std::string_view(column.bytes).substr(std::min(from * width, column.bytes.size())));
}

std::vector<size_t> thinned_indices(std::span<const double> values, size_t limit) {
  std::vector<size_t> indices;
  if (values.size() <= limit) {
    for (size_t i = 0; i < values.size(); ++i) indices.push_back(i);
    return indices;
  }
  const size_t stretches = limit / 2;
  const auto keep = [&](size_t i) {
    if (indices.empty() || indices.back() < i) indices.push_back(i);
  };
  keep(0);
  for (size_t s = 0; s < stretches; ++s) {
    const size_t from = values.size() * s / stretches, to = values.size() * (s + 1) / stretches;
    size_t low = from, high = from;  // an interval of only NaN keeps its first point
    for (size_t i = from; i < to; ++i) {
      if (std::isnan(values[i])) continue;
      if (std::isnan(values[low]) || values[i] < values[low]) low = i;
      if (std::isnan(values[high]) || values[i] > values[high]) high = i;
    }
    keep(std::min(low, high));
    keep(std::max(low, high));
  }
  keep(values.size() - 1);
  return indices;
}

}  // namespace dtopp::report
