// Describes the content of a report: sections of charts, heat maps, tables and pictures.
//
// Numbers to draw are columns (report/document/columns.h); members such as `x` and `y` hold their ids. All
// strings are plain text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace dtopp::report {

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

class Columns;

// Returns the document for the page's script. If `generation` is set, the page polls the server for updates.
std::string to_json(const ReportDocument& document, const Columns& columns,
                    std::optional<uint64_t> generation);

// Returns the update for a page with generation `since`. The page displays `trouble`.
std::string news_json(const ReportDocument& document, const Columns& columns, uint64_t since,
                      const std::optional<std::string>& trouble);

}  // namespace dtopp::report
