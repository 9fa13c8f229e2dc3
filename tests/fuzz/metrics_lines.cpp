// metrics.jsonl, as a report reads it and as a resumed run cuts it.
#include <algorithm>

#include "dtopp/base/files.h"
#include "dtopp/runs/metrics.h"
#include "dtopp/runs/run_history.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const auto step = static_cast<int64_t>(input.choice(256)) - 1;
  const std::string text = input.rest();
  const auto path = fuzz::write_scratch(runs::kMetricsFile, text);
  fuzz::accepts([&] {
    for (const auto& [name, series] : runs::read_run_history(path).series) {
      fuzz::require(series.steps.size() == series.values.size(), "each step has a value");
      fuzz::require(std::is_sorted(series.steps.begin(), series.steps.end()), "steps rise");
    }
  });
  runs::MetricsWriter(fuzz::scratch(), step, /*tensorboard=*/false);
  const std::string kept = read_file(path);
  fuzz::require(kept.empty() || kept.ends_with('\n'), "whole lines are kept");
  runs::MetricsWriter(fuzz::scratch(), step, /*tensorboard=*/false);
  fuzz::require(read_file(path) == kept, "a second cut at the same step changes nothing");
  return 0;
}
