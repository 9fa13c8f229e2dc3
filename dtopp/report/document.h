// Describes the content of a report: sections of charts, heat maps, tables and pictures.
//
// Numbers to draw are columns; members such as `x` and `y` hold their ids. All
// strings are plain text.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
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

// The columns of numbers of a page: an arithmetic progression if that is exact, else little-endian floats.
class Columns {
 public:
  // Begins a new generation: columns that are added from now on replace those with the same key. Others stay.
  void begin_generation() { ++generation_; }
  uint64_t generation() const { return generation_; }

  // Both return the column's id in the document. A key keeps its id. Numbers that are not finite become NaN.
  int add(const std::string& key, std::span<const double> values) {  // rounded to float32
    return insert(key, values, ReportColumn::Kind::kFloat32);
  }
  int add_exact(const std::string& key, std::span<const double> values) {
    return insert(key, values, ReportColumn::Kind::kFloat64);
  }

  const std::vector<ReportColumn>& all() const { return columns_; }
  const ReportColumn& at(int id) const { return columns_.at(static_cast<size_t>(id)); }
  // Returns the length of the prefix that a page with this generation can keep.
  uint64_t known_to(int id, uint64_t generation) const;

 private:
  int insert(const std::string& key, std::span<const double> values, ReportColumn::Kind kind);

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

struct ReportLine {
  int run = 0;
  std::string name;  // shown after the run's name; empty: the run's main line
  int x = 0;         // steps, or the chart's own x
  int y = 0;
  std::optional<int> band = std::nullopt;  // y ± band is shaded
  bool marks = false;                      // mark every point and never smooth
  bool minor = false;                      // thin and dotted
  bool of_many = false;                    // the line combines several runs; its label is `name` alone
};

// A horizontal line across a chart. With `run`, it is hidden together with that run.
struct ReportLevel {
  double value = 0;
  std::string label;
  std::optional<int> run = std::nullopt;
};

struct ReportChart {
  std::string title, y_label;
  std::vector<ReportLine> lines = {};
  std::vector<ReportLevel> levels = {};
  bool log = false;
  bool from_zero = false;
  bool exact = false;   // the values have no noise: never smooth
  std::string own_x{};  // label of x if x is not steps (tokens, FLOPs and hours follow from steps)
  std::string note{};
};

struct ReportHeatMap {
  std::string title, y_label;
  int run = 0;
  std::vector<std::string> rows = {};
  int x = 0;
  std::vector<int> cells = {};  // one column id per row
  std::string own_x{};
  std::string note{};
};

struct RunCell {
  int run = 0;
};
using ReportCell = std::variant<std::string, RunCell>;

struct ReportTable {
  std::string title;
  std::vector<std::string> head;
  std::vector<std::vector<ReportCell>> rows = {};
  std::string note{};
};

struct ReportPicture {
  std::string title;
  int run = 0;
  std::string png;  // the file's bytes
};

struct ReportBlock;

struct ReportDetails {  // collapsed initially
  std::string title;
  std::vector<ReportBlock> blocks;
};

struct ReportOption {
  std::string name;
  std::vector<ReportBlock> blocks;
};

struct ReportChoice {  // shows one option at a time
  std::string id, title;
  std::vector<ReportOption> options;
};

struct ReportBlock {
  std::variant<ReportChart, ReportHeatMap, ReportTable, ReportPicture, ReportDetails, ReportChoice> content;
};

struct ReportSection {
  std::string id, title;
  std::vector<std::string> answers = {};  // sentences below the title
  std::vector<ReportBlock> blocks = {};
};

// A run's entry in the list of runs, and its clock: columns with one number per training line. `tag` is its
// short label, and `about` the text shown when the pointer is over it.
struct ReportedRun {
  std::string name, tag, about;
  int style = 0;  // runs that differ only in their seed share one
  struct Clock {
    int steps = 0, tokens = 0;
    std::optional<int> hours = std::nullopt, flops = std::nullopt;  // nullopt if the run does not log them
  };
  std::optional<Clock> clock;
};

struct ReportDocument {
  std::string title, about;
  std::vector<ReportedRun> runs;
  std::vector<ReportSection> sections;
  std::vector<std::string> notes;
};

// Returns the document for the page's script. If `generation` is set, the page polls the server for updates.
std::string to_json(const ReportDocument& document, const Columns& columns,
                    std::optional<uint64_t> generation);

// Returns the update for a page with generation `since`. The page displays `trouble`.
std::string news_json(const ReportDocument& document, const Columns& columns, uint64_t since,
                      const std::optional<std::string>& trouble);

}  // namespace dtopp::report
