// What a report says, before it is a page: sections of charts, heat maps and tables. Numbers to be drawn are
// columns (report/document/columns.h), named by their numbers; all texts are plain.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace dtopp {

struct ReportLine {
  int run = 0;
  std::string name;  // beside the run's; "": its main one
  int x = 0;         // steps, or the chart's own x
  int y = 0;
  std::optional<int> band = std::nullopt;  // y ± band is shaded
  bool marks = false;                      // few points, each one marked, never smoothed
  bool minor = false;                      // thin and dotted
  bool of_many = false;                    // of several runs: `name` is all its name
};

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
  bool exact = false;   // nothing to be smoothed: it has no noise
  std::string own_x{};  // what x is where it is neither steps nor what follows from them
  std::string note{};
};

struct ReportHeatMap {
  std::string title, y_label;
  int run = 0;
  std::vector<std::string> rows = {};
  int x = 0;
  std::vector<int> cells = {};  // a column a row
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

struct ReportBlock;

struct ReportDetails {  // closed at first
  std::string title;
  std::vector<ReportBlock> blocks;
};

struct ReportOption {
  std::string name;
  std::vector<ReportBlock> blocks;
};

struct ReportChoice {  // one of several at a time
  std::string id, title;
  std::vector<ReportOption> options;
};

struct ReportBlock {
  std::variant<ReportChart, ReportHeatMap, ReportTable, ReportDetails, ReportChoice> content;
};

struct ReportSection {
  std::string id, title;
  std::vector<std::string> answers = {};
  std::vector<ReportBlock> blocks = {};
};

// How a run is listed, and its clock: columns over its training lines. Without FLOPs where they are unknown.
struct ReportedRun {
  std::string name, tag, about;
  int style = 0;  // runs that differ in their seeds alone share one
  struct Clock {
    int steps = 0, tokens = 0, hours = 0;
    std::optional<int> flops = std::nullopt;
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

// For the page's script. `generation` where the page is to ask for news.
std::string to_json(const ReportDocument& document, const Columns& columns,
                    std::optional<uint64_t> generation);

// What a page of generation `since` lacks; `trouble` is shown on it.
std::string news_json(const ReportDocument& document, const Columns& columns, uint64_t since,
                      const std::optional<std::string>& trouble);

}  // namespace dtopp
