// Reads and writes the folder of a study's run, and decides whether its earlier contents can be resumed.
//
//   <run>/study-run.yaml   the configuration for `dtopp train`
//   <run>/study-run.json   the configuration's checksum and the run's status
//   <run>/console.log      standard output and error of the run
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "dtopp/study/expansion.h"

namespace dtopp {

enum class RunStatus { kPending, kDone, kFailed };

// "pending", "done", "failed"
std::string to_text(RunStatus status);

struct RunRecord {
  RunStatus status = RunStatus::kPending;
  std::string cause{};  // one line; only for a failed run
  double seconds = 0;   // total time of all its processes
};

// Reads the record of this run. It is pending if the folder holds no run or a run with another configuration.
RunRecord read_record(const StudyRun& run);
void write_record(const StudyRun& run, const RunRecord& record);

// Creates the folder of this run and writes the configuration into it.
//
// If the study was changed, the folder may hold a run with another configuration. That run is moved to
// OUTPUT/earlier/NAME-CHECKSUM. An earlier run with this configuration is moved back from there. `log`
// receives one message per move.
void prepare_folder(const StudyRun& run, const std::function<void(const std::string&)>& log);

// Returns whether the folder holds the run with this checksum (StudyRun::hash).
bool holds_run(const std::filesystem::path& directory, const std::string& hash);

std::filesystem::path config_of_run(const StudyRun& run);   // study-run.yaml
std::filesystem::path console_of_run(const StudyRun& run);  // console.log
std::filesystem::path metrics_of_run(const StudyRun& run);  // metrics.jsonl

// Returns the last step in the run's metrics.jsonl. It is 0 before the first step, and if the folder holds a
// run with another configuration.
int64_t last_step(const StudyRun& run);

}  // namespace dtopp
