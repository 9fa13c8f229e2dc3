// What a run's folder says of it, and which of its earlier contents a study goes on from.
//   <run>/study-run.yaml   the configuration that `dtopp train` is given
//   <run>/study-run.json   the configuration's checksum, and how the run ended
//   <run>/console.log      what it printed
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
  std::string cause{};  // of a failure, one line
  double seconds = 0;   // that its processes ran, together
};

// What the folder holds of this run; a pending one where it holds nothing, or a run of another configuration.
RunRecord read_record(const StudyRun& run);
void write_record(const StudyRun& run, const RunRecord& record);

// Makes the folder one of this run and writes the configuration into it. Where it holds a run of another
// configuration, as after a change of the study, that is moved to OUTPUT/earlier/NAME-CHECKSUM, and what lies
// there of this configuration comes back. `say` is told.
void prepare_folder(const StudyRun& run, const std::function<void(const std::string&)>& say);

// Whether a folder's run is the one of this checksum (StudyRun::hash).
bool holds_run(const std::filesystem::path& directory, const std::string& hash);

std::filesystem::path config_of_run(const StudyRun& run);   // study-run.yaml
std::filesystem::path console_of_run(const StudyRun& run);  // console.log
std::filesystem::path metrics_of_run(const StudyRun& run);  // metrics.jsonl

// How far the run is, from the last line of its metrics: 0 before the first step, and where the folder holds
// a run of another configuration.
int64_t last_step(const StudyRun& run);

}  // namespace dtopp
