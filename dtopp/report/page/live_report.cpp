#include "dtopp/report/page/live_report.h"

#include <system_error>

#include "dtopp/base/errors.h"
#include "dtopp/report/page/page.h"
#include "dtopp/report/sections/sections.h"

namespace dtopp::report {

namespace fs = std::filesystem;

LiveReport::LiveReport(std::vector<fs::path> paths, FindCost find_cost)
    : paths_(std::move(paths)), find_cost_(find_cost) {
  read();
  state_ = state();
}

void LiveReport::read() {
  ReportInput input = read_report_input(paths_, find_cost_);
  folders_ = std::move(input.folders);
  columns_.begin_generation();
  document_ = make_document(input, columns_);
}

LiveReport::State LiveReport::state() const {
  State state;
  const auto add = [&](const fs::path& file) {
    std::error_code error;
    const uintmax_t size = fs::file_size(file, error);
    if (error) return;
    state[file] = {size, fs::last_write_time(file, error).time_since_epoch().count()};
  };
  for (const fs::path& run : folders_) {
    add(run / "metrics.jsonl");
    for (const fs::path& folder : {run, run / "samples"}) {
      std::error_code error;
      for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        if (folder != run || it->path().extension() == ".json") add(it->path());
      }
    }
  }
  for (const fs::path& path : paths_) {
    const fs::path folder = path.filename() == "study.json" ? path.parent_path() : path;
    for (const char* file : {"study.json", "curves.json"}) add(folder / file);
  }
  return state;
}

void LiveReport::refresh() {
  State now = state();
  if (now == state_) return;
  state_ = std::move(now);
  try {
    read();
    trouble_.reset();
  } catch (const Error& error) {
    trouble_ = error.what();
  }
}

std::string LiveReport::page() {
  refresh();
  return render_page(document_, columns_, columns_.generation());
}

std::string LiveReport::news(uint64_t since) {
  refresh();
  return news_json(document_, columns_, since, trouble_);
}

}  // namespace dtopp::report
