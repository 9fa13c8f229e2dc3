// Columns of numbers as a page carries them: base64 of little-endian float32, or what is shorter and exact.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace dtopp {

// One column. Its ends are known by generation, so that a page that has an earlier one gets what was added.
struct ReportColumn {
  enum class Kind { kAffine, kFloat32, kFloat64 };

  Kind kind = Kind::kAffine;
  uint64_t n = 0;
  double first = 0, step = 0;  // of kAffine: element i is first + step · i
  std::string bytes;           // of the others

  // Since which generation it only grew, and how long it was before each later one.
  uint64_t written_at = 0;
  std::map<uint64_t, uint64_t> lengths;  // generation → n
};

class Columns {
 public:
  // The columns that are added from here on replace those of their keys; the others stay.
  void begin_generation() { ++generation_; }
  uint64_t generation() const { return generation_; }

  // Both give the number that stands for the column in the document; the same key keeps its number. Numbers
  // that are not finite become NaN.
  int add(const std::string& key, std::span<const double> values);        // rounded to float32
  int add_exact(const std::string& key, std::span<const double> values);  // float64

  const std::vector<ReportColumn>& all() const { return columns_; }
  const ReportColumn& at(int id) const { return columns_.at(static_cast<size_t>(id)); }
  // How many of the column's numbers a page of this generation has and may keep.
  uint64_t known_to(int id, uint64_t generation) const;

 private:
  int place(const std::string& key, ReportColumn made);

  uint64_t generation_ = 1;
  std::map<std::string, int> ids_;
  std::vector<ReportColumn> columns_;
};

// Of the column's numbers from `from` on; empty for kAffine.
std::string base64_of(const ReportColumn& column, uint64_t from);

// The places of the points that are kept of more than `limit`: of each of limit / 2 equal stretches the
// smallest and the largest, the first and last of all. Every place where there are no more.
std::vector<size_t> thinned_places(std::span<const double> values, size_t limit);

}  // namespace dtopp
