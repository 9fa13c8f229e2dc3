// Reads and writes the folder of a study's run, and decides whether its earlier contents can be resumed.
//
//   <run>/study-run.yaml   the configuration for `dtopp train`
//   <run>/study-run.json   the configuration's checksum and the run's status
//   <run>/console.log      standard output and error of the run
//   <run>/after/NAME.json  the result of a command after the run; its output is in NAME.log
#pragma once

#include "dtopp/study/definition.h"

namespace dtopp::study {

enum class RunStatus { kPending, kDone, kFailed };

constexpr auto enum_names(RunStatus) {
  return std::to_array<std::string_view>({"pending", "done", "failed"});
}

struct RunRecord {
  RunStatus status = RunStatus::kPending;
  std::string cause{};               // one line: why the run, or else a command after it, failed
  double seconds = 0;                // total time of all training processes
  std::vector<std::string> after{};  // the commands that have succeeded after it, in order ("NAME: LINE")
};

// Returns the number of commands whose results are valid. If a command has changed, neither its result nor
// those after it are.
size_t commands_done(const RunRecord& record, const std::vector<AfterCommand>& after);
// Returns whether neither training nor a command is left to run.
bool is_complete(const RunRecord& record, const std::vector<AfterCommand>& after);
std::string to_text(const AfterCommand& command);  // "NAME: LINE"

// Reads the record of this run. It is pending if the folder holds no run or a run with another configuration.
RunRecord read_record(const StudyRun& run);
void write_record(const StudyRun& run, const RunRecord& record);

// Creates the folder of this run and writes the configuration into it.
//
// If the study was changed, the folder may hold a run with another configuration. That run is moved to
// OUTPUT/earlier/NAME-CHECKSUM. An earlier run with this configuration is moved back from there.
//
// Returns: one message per move
std::vector<std::string> prepare_folder(const StudyRun& run);

// Returns whether the folder holds the run with this checksum (StudyRun::hash).
bool holds_run(const fs::path& directory, const std::string& hash);

inline fs::path config_of_run(const StudyRun& run) { return run.directory / "study-run.yaml"; }
inline fs::path console_of_run(const StudyRun& run) { return run.directory / "console.log"; }
inline fs::path metrics_of_run(const StudyRun& run) { return run.directory / "metrics.jsonl"; }
inline fs::path result_of(const StudyRun& run, const AfterCommand& command) {
  return run.directory / "after" / (command.name + ".json");
}
inline fs::path console_of(const StudyRun& run, const AfterCommand& command) {
  return run.directory / "after" / (command.name + ".log");
}

// Returns the last step in the run's metrics.jsonl. It is 0 before the first step, and if the folder holds a
// run with another configuration.
int64_t last_step(const StudyRun& run);

}  // namespace dtopp::study
