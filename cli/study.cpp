// Implements `dtopp study`: trains a grid of runs with several seeds and compares them with confidence
// intervals.
#include <iterator>

#include "cli/commands.h"
#include "cli/option_checks.h"
#include "cli/ranks.h"
#include "dtopp/base/cpu_cores.h"
#include "dtopp/device/device.h"
#include "dtopp/device/known_devices.h"
#include "dtopp/report/page.h"
#include "dtopp/study/ledger.h"
#include "dtopp/study/results.h"
#include "dtopp/study/runner.h"

namespace dtopp::cli {
namespace {

struct StudyOptions {
  std::string file;
  std::vector<std::string> overrides;
  std::vector<std::string> together;
  bool dry_run = false;
  bool blind = false;
  int64_t slots = 1;
  double hours = 0;
};

double flops_of_run(const study::StudyRun& run) {
  const plan::Plan plan = plan::make_plan(run.config);
  return study::flops_of(run.config, plan.flops_per_token, plan.tokens_per_step);
}

void print_forecast(const std::vector<study::StudyRun>& runs, const std::vector<study::RunRecord>& records) {
  std::vector<study::RunCost> costs;
  // Each combination of precision and number of threads is measured once.
  std::map<std::pair<at::ScalarType, int64_t>, double> rates;
  for (const study::StudyRun& run : runs) {
    const config::TrainingConfig& training = run.config.training;
    const at::Device device = device::compute_device(training.device, "training.device");
    const at::ScalarType type = device::compute_type(training.precision, device);
    const auto [rate, is_new] = rates.try_emplace({type, training.threads});
    if (is_new) {
      const int threads = at::get_num_threads();
      if (training.threads > 0) at::set_num_threads(static_cast<int>(training.threads));
      rate->second = device::measure_matrix_rate(at::device(device).dtype(type));
      at::set_num_threads(threads);
    }
    costs.push_back({flops_of_run(run), rate->second});
  }
  std::printf(
      "%s", study::forecast_table(runs, records, costs, study::reached_share(runs, records, costs)).c_str());
}

std::map<std::string, std::string> describe_machine(const config::RunConfig& config) {
  const at::Device device = device::compute_device(config.training.device, "training.device");
  std::map<std::string, std::string> facts = {{"device", device::describe_device(device)},
                                              {"cpu", cpu_model()},
                                              {"version", program_version()},
                                              {"precision", enum_name(config.training.precision)}};
  if (config.training.threads > 0) facts["threads"] = std::to_string(config.training.threads);
  return facts;
}

// Throws an exception that gives the exit status if the study was stopped or runs failed.
void report_end(const study::Study& study, const study::StudyRunner& runner,
                const std::vector<study::StudyRun>& runs, const std::vector<study::RunRecord>& records) {
  std::string failed;
  int64_t complete = 0, failures = 0, all = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].selected) continue;
    ++all;
    if (study::is_complete(records[i], study.after)) ++complete;
    if (records[i].cause.empty()) continue;
    failed += (failed.empty() ? "" : ", ") + runs[i].name;
    ++failures;
  }
  const auto count = [&](int64_t n) { return std::to_string(n) + " of " + std::to_string(all) + " runs "; };
  if (runner.out_of_time())
    print_message(count(complete) +
                  "done; the others do not end within --hours; run the same command again to resume");
  else if (runner.stopped() || complete + failures < all)
    throw Stopped("study stopped: ", count(complete), "done; run the same command again to resume");
  if (failures > 0)
    throw NumericalError(count(failures), "failed: ", failed, "; see console.log and after/*.log in ",
                         (study.output / "runs").string(), ", and run the same command again to retry them");
}

// A study with the state of its runs, from their folders and the ledger.
struct OpenStudy {
  study::Study study;
  std::vector<study::StudyRun> runs;
  std::vector<study::RunRecord> records{};
  std::optional<study::LedgerKeeper> ledger{};
  std::optional<study::ResultsReader> reader{};

  OpenStudy(const std::string& file, const std::vector<std::string>& overrides)
      : study(study::load_study(file, overrides)), runs(study::expand(study)) {}
  OpenStudy(const OpenStudy&) = delete;
  OpenStudy& operator=(const OpenStudy&) = delete;

  void read() {
    records.resize(runs.size());
    std::ranges::transform(runs, records.begin(), study::read_record);
    reader.emplace(study, runs);
    ledger.emplace(study, runs);
    for (const std::string& message : ledger->take_runs(records, *reader)) print_message(message);
  }
};

std::vector<study::ComparisonResult> comparisons_of(const std::vector<std::string>& files) {
  std::vector<study::ComparisonResult> all;
  for (const std::string& file : files) {
    OpenStudy other(file, {});
    other.read();
    std::ranges::move(other.reader->read(other.records).comparisons, std::back_inserter(all));
  }
  return all;
}

void show_results(const OpenStudy& open, const study::StudyResults& results) {
  study::write_curves(open.study, open.runs, open.records, open.ledger->curves());
  const auto has_folder = [](const study::StudyRun& run) {
    return path_kind(study::metrics_of_run(run)) == PathKind::kFile;
  };
  if (std::ranges::count(open.records, study::RunStatus::kDone, &study::RunRecord::status) > 0 &&
      std::ranges::any_of(open.runs, has_folder))
    report::write_report(report::read_report_input({open.study.output}, planned_memory),
                         open.study.output / "report.html");
  std::printf("%s", study::markdown_results(open.study, results).c_str());
}

void run_study(OpenStudy& open, const StudyOptions& choice) {
  const study::Study& study = open.study;
  make_directories(study.output);
  const DirectoryLock lock(study.output);
  open.read();
  const std::vector<study::ComparisonResult> together = comparisons_of(choice.together);
  const auto write_results = [&] {
    study::StudyResults results = open.reader->read(open.records, together);
    open.ledger->add_runs(open.records, results, describe_machine);
    if (!choice.blind) study::write_result_files(study, open.runs, open.records, results);
    return results;
  };
  write_results();
  study::RunnerOptions options{.slots = choice.slots, .after = study.after, .hours = choice.hours};
  if (choice.slots > 1) options.threads = share_of_cores(choice.slots);
  options.costs.resize(open.runs.size());
  std::ranges::transform(open.runs, options.costs.begin(), flops_of_run);
  study::StudyRunner runner(open.runs, open.records, options);
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
  if (choice.blind)
    std::printf("%s", study::blind_text(results.comparisons).c_str());
  else
    show_results(open, results);
  report_end(study, runner, open.runs, open.records);
}

void study_run(const StudyOptions& options) {
  if (!own_launch_environment().alone())
    throw UsageError(
        "study: cannot run under a launcher, because it starts its runs itself; start it directly");
  OpenStudy open(options.file, options.overrides);
  if (options.blind && open.study.compare.empty())
    throw UsageError(options.file, ": --blind needs comparisons; add compare");
  if (!options.dry_run) return run_study(open, options);
  open.read();
  print_forecast(open.runs, open.records);
}

}  // namespace

void add_study(CLI::App& app) {
  auto options = std::make_shared<StudyOptions>();
  CLI::App* command = app.add_subcommand(
      "study",
      "Train variants of a configuration with several seeds and compare them (docs/how-to/compare.md)");
  command->add_option("study", options->file, "YAML file of the study")->required();
  command->add_option(
      "overrides", options->overrides,
      "seeds=, measure=, ledger= and output= set keys of the study; variants=[NAME, …] trains "
      "these variants alone; variants.NAME.key=value changes one variant; any other "
      "key.path=value applies to every run, e.g. training.steps=100");
  command->add_flag("--dry-run", options->dry_run,
                    "print the runs with their FLOPs and estimated hours on this machine, without training");
  add_number(*command, "--slots", options->slots, "number of concurrent runs, which share the cores",
             between(1, 1024));
  add_checked(*command, "--hours", options->hours,
              "start no run that would end after this many hours; the next call resumes; 0: no limit",
              not_negative<double>());
  command->add_flag(
      "--blind", options->blind,
      "print only n and the standard deviation of the planned differences, and write no results");
  command
      ->add_option("--together", options->together,
                   "YAML file of another study whose planned comparisons share families with this study's")
      ->allow_extra_args(false);
  command->callback(
      [options] { distributed::with_memory_advice("lower --slots", [&] { study_run(*options); }); });
}

}  // namespace dtopp::cli
