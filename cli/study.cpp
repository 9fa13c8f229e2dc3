// Implements `dtopp study`: trains a grid of runs with several seeds and compares them with confidence
// intervals.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/ranks.h"
#include "cli/run_cost.h"
#include "cli/standard_streams.h"
#include "cli/verbs.h"
#include "dtopp/base/cpu_cores.h"
#include "dtopp/base/files.h"
#include "dtopp/device/compute_device.h"
#include "dtopp/device/matrix_rate.h"
#include "dtopp/distributed/membership/failure.h"
#include "dtopp/launch/launch_environment.h"
#include "dtopp/plan/plan.h"
#include "dtopp/report/page/page.h"
#include "dtopp/study/curves.h"
#include "dtopp/study/forecast.h"
#include "dtopp/study/result_files.h"
#include "dtopp/study/runner.h"
#include "dtopp/study/tables.h"

namespace dtopp::cli {
namespace {

struct StudyOptions {
  std::string file;
  std::vector<std::string> overrides;
  bool dry_run = false;
  int64_t slots = 1;
};

double flops_of_run(const study::StudyRun& run) {
  const plan::Plan plan = plan::make_plan(run.config);
  return study::flops_of(run.config, static_cast<double>(plan.flops_per_token),
                         static_cast<double>(plan.tokens_per_step));
}

// Measures matrix rates. Each combination of precision and number of threads is measured once.
class MatrixRates {
 public:
  double of(const config::RunConfig& config) {
    const at::Device device = device::compute_device(config.training.device, "training.device");
    const at::ScalarType type = device::compute_type(config.training.precision, device);
    const auto [known, is_new] = rates_.try_emplace({type, config.training.threads});
    if (is_new) {
      const int threads = at::get_num_threads();
      if (config.training.threads > 0) at::set_num_threads(static_cast<int>(config.training.threads));
      known->second = device::measure_matrix_rate(at::device(device).dtype(type));
      at::set_num_threads(threads);
    }
    return known->second;
  }

 private:
  std::map<std::pair<at::ScalarType, int64_t>, double> rates_;
};

void print_forecast(const std::vector<study::StudyRun>& runs, const std::vector<study::RunRecord>& records) {
  MatrixRates rates;
  std::vector<study::RunCost> costs;
  costs.reserve(runs.size());
  for (const study::StudyRun& run : runs) costs.push_back({flops_of_run(run), rates.of(run.config)});
  std::printf("%s", study::forecast_table(runs, records, costs, study::reached_share(runs, records)).c_str());
}

// Throws an exception that gives the exit status if the study was stopped or runs failed.
void report_end(const study::Study& study, bool stopped, const std::vector<study::StudyRun>& runs,
                const std::vector<study::RunRecord>& records) {
  std::string failed;
  int64_t complete = 0, failures = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (study::is_complete(records[i], study.after)) ++complete;
    if (records[i].cause.empty()) continue;
    failed += (failed.empty() ? "" : ", ") + runs[i].name;
    ++failures;
  }
  const auto count = [&](int64_t n) {
    return std::to_string(n) + " of " + std::to_string(runs.size()) + " runs ";
  };
  if (stopped || complete + failures < std::ssize(runs))
    throw Stopped("study stopped: " + count(complete) + "done; run the same command again to resume");
  if (failures > 0)
    throw NumericalError(count(failures) + "failed: " + failed + "; see console.log and after/*.log in " +
                         (study.output / "runs").string() + ", and run the same command again to retry them");
}

std::vector<study::RunRecord> read_records(const std::vector<study::StudyRun>& runs) {
  std::vector<study::RunRecord> records(runs.size());
  std::ranges::transform(runs, records.begin(), study::read_record);
  return records;
}

void run_study(const study::Study& study, const std::vector<study::StudyRun>& runs, int64_t slots) {
  make_directories(study.output);
  const DirectoryLock lock(study.output);
  std::vector<study::RunRecord> records = read_records(runs);
  study::ResultsReader reader(study, runs);
  const auto write_results = [&] {
    study::StudyResults results = reader.read(records);
    study::write_result_files(study, runs, records, results);
    return results;
  };
  write_results();
  study::RunnerOptions options{.slots = slots, .after = study.after};
  if (slots > 1) options.threads = share_of_cores(slots);
  options.costs.resize(runs.size());
  std::ranges::transform(runs, options.costs.begin(), flops_of_run);
  study::StudyRunner runner(runs, records, options);
  // Results are derived data: the runs need not stop if they cannot be written. The last write throws.
  bool wrote = true;
  while (const auto messages = runner.next()) {
    for (const std::string& message : *messages) print_message(message);
    try {
      write_results();
      wrote = true;
    } catch (const DataError& error) {
      if (wrote) print_message(std::string("warning: ") + error.what());
      wrote = false;
    }
  }
  const study::StudyResults results = write_results();
  study::write_curves(study, runs, records);
  if (std::ranges::count(records, study::RunStatus::kDone, &study::RunRecord::status) > 0)
    report::write_report(report::read_report_input({study.output}, find_run_cost),
                         study.output / "report.html");
  std::printf("%s", study::markdown_table(study, results.rows).c_str());
  report_end(study, runner.stopped(), runs, records);
}

void study_run(const StudyOptions& options) {
  if (!own_launch_environment().alone())
    throw UsageError(
        "study: cannot run under a launcher, because it starts its runs itself; start it directly");
  const study::Study study = study::load_study(options.file, options.overrides);
  const std::vector<study::StudyRun> runs = study::expand(study);
  if (!options.dry_run) return run_study(study, runs, options.slots);
  print_forecast(runs, read_records(runs));
}

}  // namespace

void add_study(CLI::App& app) {
  auto options = std::make_shared<StudyOptions>();
  CLI::App* verb = app.add_subcommand(
      "study",
      "Train variants of a configuration with several seeds and compare them (docs/how-to/compare.md)");
  verb->add_option("study", options->file, "YAML file of the study")->required();
  verb->add_option("overrides", options->overrides,
                   "seeds=, measure= and output= set keys of the study; any other key.path=value applies to "
                   "every run, e.g. training.steps=100");
  verb->add_flag("--dry-run", options->dry_run,
                 "print the runs with their FLOPs and estimated hours on this machine, without training");
  verb->add_option("--slots", options->slots, "number of concurrent runs, which share the cores")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  verb->callback(
      [options] { distributed::with_memory_advice("lower --slots", [&] { study_run(*options); }); });
}

}  // namespace dtopp::cli
