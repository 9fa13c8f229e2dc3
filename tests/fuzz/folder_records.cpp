// Records that commands keep in the folders they write: of a study's run, of a run, and of a preparation.
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "dtopp/data/files/resumable_folder.h"
#include "dtopp/data/text/token_file.h"
#include "dtopp/runs/run_directory.h"
#include "dtopp/study/run_folder.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static void read_study_run(const std::string& text) {
  fuzz::write_scratch("study-run.json", text);
  const study::StudyRun run{.directory = fuzz::scratch(), .hash = "00"};
  const study::RunRecord record = study::read_record(run);
  fuzz::require(study::holds_run(fuzz::scratch(), run.hash) || record.status == study::RunStatus::kPending,
                "the record of another run counts as none");
  fuzz::require(study::commands_done(record, {{"a", "b"}}) <= 1, "a command is done once");
}

static void read_run(const std::string& text) {
  fuzz::write_scratch("run.json", fuzz::sealed(text));
  runs::require_no_lost_checkpoints(fuzz::scratch());
}

static void read_preparation(const std::string& text) {
  const auto folder = fuzz::scratch() / "prepared";
  ::mkdir(folder.c_str(), 0700);
  fuzz::write_scratch("prepared/manifest.json", fuzz::sealed(text));
  const data::ResumableFolder prepared(folder, data::token_folder_kind(), {{"tokenizer_hash", "00"}},
                                       {{"a", 3, "00"}});
  fuzz::require(prepared.complete().has_value(), "a folder with a manifest is complete");
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const auto read = std::array{read_study_run, read_run, read_preparation}[input.choice(3)];
  fuzz::accepts([&] { read(input.rest()); });
  return 0;
}
