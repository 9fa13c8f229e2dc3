// A result of `dtopp evaluate --output`. It is read or skipped, never an error.
#include "dtopp/tasks/evaluation_files.h"

#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::write_scratch("result.json", fuzz::Input(data, size).rest());
  const tasks::Evaluations evaluations = tasks::read_evaluations(fuzz::scratch());
  fuzz::require(evaluations.by_model.size() + evaluations.skipped.size() <= 1, "one file has one result");
  for (const auto& [model, unused] : evaluations.by_model)
    fuzz::require(!tasks::label_of(model).empty(), "a result has a label");
  return 0;
}
