// A report that follows its runs while they write.
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

namespace dtopp {

class LiveReport {
 public:
  // Reads all once; throws as read_report_input does.
  LiveReport(std::vector<std::filesystem::path> paths, FindCost find_cost);

  // The page as of now.
  std::string page();
  // What a page of generation `since` lacks, as JSON. What went wrong since the last good state is in it.
  std::string news(uint64_t since);

 private:
  // Size and time of change of every file that the report is made of.
  using State = std::map<std::filesystem::path, std::pair<uintmax_t, int64_t>>;
  State state() const;
  void read();
  // Reads again where a file has changed.
  void refresh();

  std::vector<std::filesystem::path> paths_;
  FindCost find_cost_;
  std::vector<std::filesystem::path> folders_;  // of runs
  State state_;
  Columns columns_;
  ReportDocument document_;
  std::optional<std::string> trouble_;
};

}  // namespace dtopp
