// Stores the columns of numbers of a page: an arithmetic progression if that is exact, else base64 of
// little-endian floats.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp::report {

// One column, with its length at each generation, so that a page with an older generation receives only new
// numbers.
struct ReportColumn {
  enum class Kind { kAffine, kFloat32, kFloat64 };

  Kind kind = Kind::kAffine;
  uint64_t n = 0;
  double first = 0, step = 0;  // kAffine: element i is first + step · i
  std::string bytes;           // kFloat32, kFloat64: the numbers, little-endian

  // The column has only grown since generation `written_at`. `lengths` holds its length at recent
  // generations.
  uint64_t written_at = 0;
  std::map<uint64_t, uint64_t> lengths;  // generation → n
};

class Columns {
 public:
  // Begins a new generation: columns that are added from now on replace those with the same key. Others stay.
  void begin_generation() { ++generation_; }
  uint64_t generation() const { return generation_; }

  // Both return the column's id in the document. A key keeps its id. Numbers that are not finite become NaN.
  int add(const std::string& key, std::span<const double> values);        // rounded to float32
  int add_exact(const std::string& key, std::span<const double> values);  // float64

  const std::vector<ReportColumn>& all() const { return columns_; }
  const ReportColumn& at(int id) const { return columns_.at(static_cast<size_t>(id)); }
  // Returns the length of the prefix that a page with this generation can keep.
  uint64_t known_to(int id, uint64_t generation) const;

 private:
  int insert(const std::string& key, ReportColumn made);

  uint64_t generation_ = 1;
  std::map<std::string, int> ids_;
  std::vector<ReportColumn> columns_;
};

std::string base64_of(std::string_view bytes);
// Encodes the column's numbers from index `from`. The result is empty for kAffine.
std::string base64_of(const ReportColumn& column, uint64_t from);

// Returns the indices of the points to keep if there are more than `limit`: the first and the last point, and
// the minimum and maximum of each of limit / 2 equal intervals. With at most `limit` points it returns all
// indices.
std::vector<size_t> thinned_indices(std::span<const double> values, size_t limit);

}  // namespace dtopp::report
