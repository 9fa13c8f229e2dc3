// Keeps a report up to date while its runs are training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/report/document/columns.h"
#include "dtopp/report/document/document.h"
#include "dtopp/report/sections/input.h"

namespace dtopp::report {

class LiveReport {
 public:
  // Reads all inputs. Throws as read_report_input does.
  LiveReport(std::vector<std::filesystem::path> paths, FindCost find_cost);

  // Returns the current page.
  std::string page();
  // Returns the update for a page with generation `since`, as JSON. It includes the error of the last read,
  // if any.
  std::string news(uint64_t since);

 private:
  // Size and modification time of every input file.
  using State = std::map<std::filesystem::path, std::pair<uintmax_t, int64_t>>;
  State state() const;
  void read();
  // Reads all inputs again if a file has changed.
  void refresh();

  std::vector<std::filesystem::path> paths_;
  FindCost find_cost_ = nullptr;
  std::vector<std::filesystem::path> folders_;  // folders of runs
  State state_;
  Columns columns_;
  ReportDocument document_;
  std::optional<std::string> trouble_;
};

}  // namespace dtopp::report
